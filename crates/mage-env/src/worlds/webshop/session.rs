//! Where is the buyer, and what happens when something is clicked?

use super::{
    action::Action,
    catalogue::Product,
    goals::{Draws, Goal},
    page::PRODUCTS_PER_PAGE,
    python_format,
    score::{Score, score},
    shop::Shop,
};
use std::sync::{Arc, OnceLock};

/// The pages of the shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The search box.
    Index,
    /// What a search found.
    Results,
    /// A product.
    Item,
    /// More about a product.
    Sub(SubPage),
    /// After a purchase.
    Done,
}

/// The pages behind a product's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubPage {
    /// Its description.
    Description,
    /// Its bullets.
    Features,
    /// Always empty.
    Reviews,
    /// Its attributes, in shops that show them.
    Attributes,
}

/// One visit to the shop, from the search box to a purchase.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) goal: Arc<Goal>,
    pub(super) place: Place,
    pub(super) words: String,
    pub(super) results: Vec<u32>,
    pub(super) page_number: i64,
    product: Option<u32>,
    pub(super) visited: Vec<u32>,
    /// OptionMap chosen: name and value, in the order of first choice.
    pub(super) chosen: Vec<(Box<str>, Box<str>)>,
    pub(super) bought: Option<Score>,
    pub(super) show_attributes: bool,
    /// The terms of the goal, found when first asked for, once for all visits with it.
    wanted: Arc<OnceLock<Wanted>>,
    /// Which option values of the product looked at the goal names, found when first asked for.
    named: OnceLock<Vec<bool>>,
}

/// The different terms of a goal.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Those that the shop's index knows, in order.
    pub(super) terms: Vec<u32>,
    /// How many there are in all.
    pub(super) count: usize,
}

impl Session {
    /// A visit for this goal, in a shop that may show attributes.
    pub(super) fn new(goal: Arc<Goal>, show_attributes: bool) -> Self {
        Session {
            goal,
            place: Place::Index,
            words: String::new(),
            results: Vec::new(),
            page_number: 1,
            product: None,
            visited: Vec::new(),
            chosen: Vec::new(),
            bought: None,
            show_attributes,
            wanted: Arc::default(),
            named: OnceLock::new(),
        }
    }

    /// Another visit with the same goal.
    pub(super) fn afresh(&self) -> Self {
        Session { wanted: Arc::clone(&self.wanted), ..Session::new(Arc::clone(&self.goal), self.show_attributes) }
    }

    /// The different terms of the goal, without its price limit.
    pub(super) fn wanted(&self, shop: &Shop) -> &Wanted {
        self.wanted.get_or_init(|| {
            let text = &self.goal.text;
            let price = text.rfind(", and price lower than ").unwrap_or(text.len());
            let (terms, count) = shop.index().distinct_terms(&text[..price]);
            Wanted { terms, count }
        })
    }

    /// Whether the goal names each option value of the product looked at, option by option; `find` finds out, once.
    pub(super) fn named(&self, find: impl FnOnce() -> Vec<bool>) -> &[bool] {
        self.named.get_or_init(find)
    }

    fn look_at(&mut self, product: Option<u32>) {
        self.product = product;
        self.named = OnceLock::new();
    }

    /// Where the buyer is.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The score, once something was bought.
    pub(super) fn bought(&self) -> Option<Score> {
        self.bought
    }

    /// The product looked at.
    pub(super) fn product(&self) -> Option<u32> {
        self.product
    }

    /// Acts; `false` if there is nothing of that name to click, and nothing changes. A search works on every page.
    pub(super) fn act(&mut self, shop: &Shop, draws: &Draws, action: &Action) -> bool {
        if self.place == Place::Done {
            return false;
        }
        match action {
            Action::Search(words) => {
                self.words.clone_from(words);
                self.results = shop.search(words);
                self.open_results(1);
                true
            }
            Action::Click(name) => self.click(shop, draws, name),
        }
    }

    fn click(&mut self, shop: &Shop, draws: &Draws, name: &str) -> bool {
        if !self.can_click(shop, name) {
            return false;
        }
        match name {
            "buy now" => self.buy(shop, draws),
            "back to search" => *self = self.afresh(),
            "next >" if self.seems_on() == Place::Results => self.open_results(self.page_number + 1),
            "< prev" => match self.seems_on() {
                Place::Results => self.open_results(self.page_number - 1),
                Place::Item => self.open_results(self.page_number),
                _ => self.place = Place::Item,
            },
            "description" => self.place = Place::Sub(SubPage::Description),
            "features" => self.place = Place::Sub(SubPage::Features),
            "reviews" => self.place = Place::Sub(SubPage::Reviews),
            "attributes" => self.place = Place::Sub(SubPage::Attributes),
            _ => self.open_or_choose(shop, name),
        }
        true
    }

    /// Whether the page has something of this name to click.
    pub(super) fn can_click(&self, shop: &Shop, name: &str) -> bool {
        let button = match self.place {
            Place::Index | Place::Done => false,
            Place::Results => matches!(name, "back to search" | "next >") || (name == "< prev" && self.page_number > 1),
            Place::Sub(_) => matches!(name, "back to search" | "< prev"),
            Place::Item => {
                matches!(name, "back to search" | "< prev" | "description" | "features" | "reviews" | "buy now")
                    || (name == "attributes" && self.show_attributes)
            }
        };
        button
            || match self.place {
                Place::Results => self.linked(shop, name).is_some(),
                Place::Item => self.option_of(shop, name).is_some(),
                _ => false,
            }
    }

    fn open_or_choose(&mut self, shop: &Shop, name: &str) {
        if self.place == Place::Results {
            if let Some(product) = self.linked(shop, name) {
                self.look_at(Some(product));
                if !self.visited.contains(&product) {
                    self.visited.push(product);
                }
                self.place = Place::Item;
            }
        } else if let Some(option) = self.option_of(shop, name) {
            let option: Box<str> = option.into();
            match self.chosen.iter_mut().find(|(n, _)| *n == option) {
                Some((_, value)) => *value = name.into(),
                None => self.chosen.push((option, name.into())),
            }
        }
    }

    fn open_results(&mut self, page: i64) {
        self.place = Place::Results;
        self.page_number = page;
        self.look_at(None);
        self.chosen.clear();
    }

    fn buy(&mut self, shop: &Shop, draws: &Draws) {
        let Some(number) = self.product else { return };
        let catalogue = shop.catalogue();
        let wanted = catalogue.product(self.goal.product);
        let chosen = self.chosen.iter().map(|(_, value)| &**value);
        self.bought = Some(score(&self.goal, wanted, catalogue.product(number), draws.price(number), chosen));
        self.place = Place::Done;
    }

    /// The products on the results page. Pages are numbered from 1; the original's page 0, which its confusion about
    /// addresses can lead to, is empty.
    pub(super) fn shown_results(&self) -> &[u32] {
        let from = usize::try_from(self.page_number - 1).unwrap_or(usize::MAX).saturating_mul(PRODUCTS_PER_PAGE);
        let from = from.min(self.results.len());
        &self.results[from..self.results.len().min(from + PRODUCTS_PER_PAGE)]
    }

    pub(super) fn product_on_page<'s>(&self, shop: &'s Shop) -> Option<&'s Product> {
        self.product.map(|p| shop.catalogue().product(p))
    }

    fn linked(&self, shop: &Shop, name: &str) -> Option<u32> {
        shop.catalogue().find(name).filter(|p| self.shown_results().contains(p))
    }

    /// The last option that has this value.
    fn option_of<'s>(&self, shop: &'s Shop, value: &str) -> Option<&'s str> {
        let options = &self.product_on_page(shop)?.options;
        options.iter().rev().find(|o| o.values.iter().any(|v| **v == *value)).map(|o| &*o.name)
    }

    /// The part of an item page's address that the original searches for values.
    pub(super) fn item_address(&self) -> String {
        let chosen = python_format::json(self.chosen.iter().map(|(n, v)| (&**n, &**v)));
        format!("{}/{}/{chosen}", self.words.replace(' ', "+"), self.page_number)
    }

    /// The page the original takes this for: it looks for page names anywhere in the address, search words included.
    fn seems_on(&self) -> Place {
        let mentions = |name: &str| self.words.contains(name) || self.chosen.iter().any(|(_, v)| v.contains(name));
        match self.place {
            Place::Item | Place::Sub(_) if mentions("search_results") => Place::Results,
            Place::Sub(_) if mentions("item_page") => Place::Item,
            place => place,
        }
    }
}
