//! State of a session and effects of actions.

use super::{
    action::ShopAction,
    catalogue::Product,
    goals::{SeededPrices, ShoppingGoal},
    page::PRODUCTS_PER_PAGE,
    python_format,
    score::{PurchaseScore, score},
    shop::Shop,
};
use std::sync::{Arc, OnceLock};

/// Page of the shop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Search page.
    Index,
    /// Search results.
    Results,
    /// Product page.
    Item,
    /// Sub-page of a product.
    Sub(SubPage),
    /// Confirmation page after a purchase.
    Done,
}

/// Sub-page of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubPage {
    /// Description.
    Description,
    /// Bullet points.
    Features,
    /// Always empty.
    Reviews,
    /// Attributes, if the shop shows them.
    Attributes,
}

/// A session, from the search page to a purchase.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) goal: Arc<ShoppingGoal>,
    pub(super) page: Page,
    pub(super) query: String,
    pub(super) results: Vec<u32>,
    pub(super) page_number: i64,
    product: Option<u32>,
    pub(super) visited: Vec<u32>,
    /// Chosen options: name and value, in order of first choice.
    pub(super) chosen: Vec<(Box<str>, Box<str>)>,
    pub(super) bought: Option<PurchaseScore>,
    pub(super) show_attributes: bool,
    /// Terms of the goal, computed on first use and shared by all sessions with this goal.
    goal_terms: Arc<OnceLock<GoalTerms>>,
    /// Whether the goal names each option value of the current product, computed on first use.
    values_in_goal: OnceLock<Vec<bool>>,
}

/// Distinct terms of a goal.
#[derive(Clone, Debug)]
pub(super) struct GoalTerms {
    /// Ids of the terms in the shop's index, sorted.
    pub(super) terms: Vec<u32>,
    /// Number of distinct terms, unindexed ones included.
    pub(super) count: usize,
}

impl Session {
    /// Starts a session for a goal.
    pub(super) fn new(goal: Arc<ShoppingGoal>, show_attributes: bool) -> Self {
        Session {
            goal,
            page: Page::Index,
            query: String::new(),
            results: Vec::new(),
            page_number: 1,
            product: None,
            visited: Vec::new(),
            chosen: Vec::new(),
            bought: None,
            show_attributes,
            goal_terms: Arc::default(),
            values_in_goal: OnceLock::new(),
        }
    }

    /// Starts a new session with the same goal.
    pub(super) fn restart(&self) -> Self {
        Session {
            goal_terms: Arc::clone(&self.goal_terms),
            ..Session::new(Arc::clone(&self.goal), self.show_attributes)
        }
    }

    /// Distinct terms of the goal, without its price limit.
    pub(super) fn goal_terms(&self, shop: &Shop) -> &GoalTerms {
        self.goal_terms.get_or_init(|| {
            let text = &self.goal.text;
            let price = text.rfind(", and price lower than ").unwrap_or(text.len());
            let (terms, count) = shop.index().distinct_terms(&text[..price]);
            GoalTerms { terms, count }
        })
    }

    /// Whether the goal names each option value of the current product, option by option. `find` computes it once.
    pub(super) fn values_in_goal(&self, find: impl FnOnce() -> Vec<bool>) -> &[bool] {
        self.values_in_goal.get_or_init(find)
    }

    fn set_product(&mut self, product: Option<u32>) {
        self.product = product;
        self.values_in_goal = OnceLock::new();
    }

    /// The current page.
    pub(super) fn page(&self) -> Page {
        self.page
    }

    /// The score of the purchase, if one was made.
    pub(super) fn bought(&self) -> Option<PurchaseScore> {
        self.bought
    }

    /// The current product.
    pub(super) fn product(&self) -> Option<u32> {
        self.product
    }

    /// Executes an action. Returns `false` and changes nothing if the click target does not exist. Searches are valid on every
    /// page.
    pub(super) fn act(&mut self, shop: &Shop, prices: &SeededPrices, action: &ShopAction) -> bool {
        if self.page == Page::Done {
            return false;
        }
        match action {
            ShopAction::Search(words) => {
                self.query.clone_from(words);
                self.results = shop.search(words);
                self.open_results(1);
                true
            }
            ShopAction::Click(name) => self.click(shop, prices, name),
        }
    }

    fn click(&mut self, shop: &Shop, prices: &SeededPrices, name: &str) -> bool {
        if !self.can_click(shop, name) {
            return false;
        }
        match name {
            "buy now" => self.buy(shop, prices),
            "back to search" => *self = self.restart(),
            "next >" if self.page_by_url() == Page::Results => self.open_results(self.page_number + 1),
            "< prev" => match self.page_by_url() {
                Page::Results => self.open_results(self.page_number - 1),
                Page::Item => self.open_results(self.page_number),
                _ => self.page = Page::Item,
            },
            "description" => self.page = Page::Sub(SubPage::Description),
            "features" => self.page = Page::Sub(SubPage::Features),
            "reviews" => self.page = Page::Sub(SubPage::Reviews),
            "attributes" => self.page = Page::Sub(SubPage::Attributes),
            _ => self.follow_link_or_choose(shop, name),
        }
        true
    }

    /// Whether the page has a clickable element with this name.
    pub(super) fn can_click(&self, shop: &Shop, name: &str) -> bool {
        let button = match self.page {
            Page::Index | Page::Done => false,
            Page::Results => matches!(name, "back to search" | "next >") || (name == "< prev" && self.page_number > 1),
            Page::Sub(_) => matches!(name, "back to search" | "< prev"),
            Page::Item => {
                matches!(name, "back to search" | "< prev" | "description" | "features" | "reviews" | "buy now")
                    || (name == "attributes" && self.show_attributes)
            }
        };
        button
            || match self.page {
                Page::Results => self.product_link(shop, name).is_some(),
                Page::Item => self.option_with_value(shop, name).is_some(),
                _ => false,
            }
    }

    fn follow_link_or_choose(&mut self, shop: &Shop, name: &str) {
        if self.page == Page::Results {
            if let Some(product) = self.product_link(shop, name) {
                self.set_product(Some(product));
                if !self.visited.contains(&product) {
                    self.visited.push(product);
                }
                self.page = Page::Item;
            }
        } else if let Some(option) = self.option_with_value(shop, name) {
            let option: Box<str> = option.into();
            match self.chosen.iter_mut().find(|(n, _)| *n == option) {
                Some((_, value)) => *value = name.into(),
                None => self.chosen.push((option, name.into())),
            }
        }
    }

    fn open_results(&mut self, page: i64) {
        self.page = Page::Results;
        self.page_number = page;
        self.set_product(None);
        self.chosen.clear();
    }

    fn buy(&mut self, shop: &Shop, prices: &SeededPrices) {
        let Some(number) = self.product else { return };
        let catalogue = shop.catalogue();
        let wanted = catalogue.product(self.goal.product);
        let chosen = self.chosen.iter().map(|(_, value)| &**value);
        self.bought = Some(score(&self.goal, wanted, catalogue.product(number), prices.price(number), chosen));
        self.page = Page::Done;
    }

    /// The products on the results page. Pages are numbered from 1; page 0, which the original can reach because it misreads
    /// URLs, is empty.
    pub(super) fn shown_results(&self) -> &[u32] {
        let from = usize::try_from(self.page_number - 1).unwrap_or(usize::MAX).saturating_mul(PRODUCTS_PER_PAGE);
        let from = from.min(self.results.len());
        &self.results[from..self.results.len().min(from + PRODUCTS_PER_PAGE)]
    }

    pub(super) fn product_on_page<'s>(&self, shop: &'s Shop) -> Option<&'s Product> {
        self.product.map(|p| shop.catalogue().product(p))
    }

    fn product_link(&self, shop: &Shop, name: &str) -> Option<u32> {
        shop.catalogue().find(name).filter(|p| self.shown_results().contains(p))
    }

    /// The last option with this value.
    fn option_with_value<'s>(&self, shop: &'s Shop, value: &str) -> Option<&'s str> {
        let options = &self.product_on_page(shop)?.options;
        options.iter().rev().find(|o| o.values.iter().any(|v| **v == *value)).map(|o| &*o.name)
    }

    /// The part of an item page's URL in which the original searches for values.
    pub(super) fn item_url(&self) -> String {
        let chosen = python_format::json(self.chosen.iter().map(|(n, v)| (&**n, &**v)));
        format!("{}/{}/{chosen}", self.query.replace(' ', "+"), self.page_number)
    }

    /// The page type the original infers: it searches for page names anywhere in the URL, including the search query.
    fn page_by_url(&self) -> Page {
        let mentions = |name: &str| self.query.contains(name) || self.chosen.iter().any(|(_, v)| v.contains(name));
        match self.page {
            Page::Item | Page::Sub(_) if mentions("search_results") => Page::Results,
            Page::Sub(_) if mentions("item_page") => Page::Item,
            page => page,
        }
    }
}
