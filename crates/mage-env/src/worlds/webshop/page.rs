//! What stands on the page?
//!
//! The original renders HTML and turns it back into text; here a page is the list of its visible texts in order, from which
//! both of its text forms are made: `text`, the texts joined by ` [SEP] `, and `text_rich`, one a line with buttons marked.

use super::{
    catalogue::Product,
    python_format,
    session::{Place, Session, SubPage},
    shop::Shop,
};
use std::borrow::Cow;

/// What separates the texts of a page.
pub const SEPARATOR: &str = " [SEP] ";

/// How many products a results page shows.
pub(super) const PRODUCTS_PER_PAGE: usize = 10;

/// One visible text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    text: Cow<'a, str>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Button,
    /// An option's value; chosen ones are marked.
    Value {
        chosen: bool,
    },
    /// A product's id; those looked at are marked.
    Link {
        visited: bool,
    },
}

/// The texts of the page a session is on.
pub(super) fn fields<'a>(shop: &'a Shop, session: &'a Session) -> Vec<Field<'a>> {
    let mut page = Page(Vec::with_capacity(40));
    let goal = session.goal.text.as_str();
    match session.place {
        Place::Index => {
            page.plain("WebShop");
            page.plain("Instruction: ");
            page.plain(goal);
            page.button("Search");
        }
        Place::Results => page.results(shop, session, goal),
        Place::Item => page.item(shop, session, goal),
        Place::Sub(sub) => page.sub(shop, session, goal, sub),
        Place::Done => page.done(shop, session),
    }
    page.0
}

struct Page<'a>(Vec<Field<'a>>);

impl<'a> Page<'a> {
    /// Adds a text as the original's HTML parser gives it back: nothing for the empty text, blanks with a line break in
    /// them vanish, other blanks become one.
    fn add(&mut self, text: impl Into<Cow<'a, str>>, kind: Kind) {
        let text = text.into();
        if text.is_empty() {
            return;
        }
        let blank = text.bytes().all(|b| matches!(b, b' ' | b'\n' | b'\t' | b'\x0c' | b'\r'));
        match blank {
            true if text.contains('\n') => {}
            true => self.0.push(Field { text: Cow::Borrowed(" "), kind }),
            false => self.0.push(Field { text, kind }),
        }
    }

    fn plain(&mut self, text: impl Into<Cow<'a, str>>) {
        self.add(text, Kind::Plain);
    }

    fn button(&mut self, text: &'static str) {
        self.add(text, Kind::Button);
    }

    fn head(&mut self, goal: &'a str) {
        self.plain("Instruction:");
        self.plain(goal);
        self.button("Back to Search");
    }

    fn results(&mut self, shop: &'a Shop, session: &'a Session, goal: &'a str) {
        self.head(goal);
        let page = session.page_number;
        self.plain(format!("Page {page} (Total results: {})", session.results.len()));
        if page > 1 {
            self.button("< Prev");
        }
        self.button("Next >");
        for number in session.shown_results() {
            let product = shop.catalogue().product(*number);
            let visited = session.visited.contains(number);
            self.add(&*product.asin, Kind::Link { visited });
            self.plain(&*product.title);
            self.plain(product.price.tag());
        }
    }

    fn item(&mut self, shop: &'a Shop, session: &'a Session, goal: &'a str) {
        let Some(product) = session.product_on_page(shop) else { return };
        self.head(goal);
        self.button("< Prev");
        // The original looks for the quoted value anywhere in the page's address, where quotes are rare.
        let address = Some(session.item_address()).filter(|address| address.contains('"'));
        for option in &product.options {
            self.plain(&*option.name);
            for value in &option.values {
                let chosen = address.as_ref().is_some_and(|address| address.contains(&format!("\"{value}\"")));
                self.add(&**value, Kind::Value { chosen });
            }
        }
        self.plain(&*product.title);
        self.plain(format!("Price: {}", product.price.tag()));
        self.plain("Rating: N.A.");
        for button in ["Description", "Features", "Reviews"] {
            self.button(button);
        }
        if session.show_attributes {
            self.button("Attributes");
        }
        self.button("Buy Now");
    }

    fn sub(&mut self, shop: &'a Shop, session: &'a Session, goal: &'a str, sub: SubPage) {
        let Some(product) = session.product_on_page(shop) else { return };
        self.head(goal);
        self.button("< Prev");
        match sub {
            SubPage::Description => self.plain(&*product.description),
            SubPage::Features => product.bullets.iter().for_each(|b| self.plain(format!(" {b}"))),
            SubPage::Reviews => {}
            SubPage::Attributes => self.attributes(product),
        }
    }

    fn attributes(&mut self, product: &'a Product) {
        product.attributes.iter().for_each(|a| self.plain(format!(" {a}")));
        self.plain(&*product.category);
        self.plain(&*product.query);
        self.plain(&*product.shelf);
    }

    /// The closing page, hidden parts included; most of what it would show is not given to it.
    fn done(&mut self, shop: &'a Shop, session: &'a Session) {
        for text in ["Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"] {
            self.plain(text);
        }
        self.plain("Purchased");
        self.plain("asin");
        self.plain(session.product_on_page(shop).map_or("", |p| &*p.asin));
        self.plain("options");
        let mut chosen: Vec<(&str, &str)> = session.chosen.iter().map(|(n, v)| (&**n, &**v)).collect();
        chosen.sort_unstable();
        self.plain(python_format::html_safe(&python_format::json(chosen)));
        for name in ["attrs", "category", "query", "product category"] {
            self.plain(name);
            self.plain("None");
        }
        self.plain("Target");
        for name in
            ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
        {
            self.plain(name);
        }
        for text in ["Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"] {
            self.plain(text);
        }
        self.plain(session.bought.map_or_else(String::new, |s| python_format::float(s.total)));
        self.plain("Reward Details ");
        self.plain("None");
    }
}

/// The page in the form `text`.
pub(super) fn text(fields: &[Field<'_>]) -> String {
    let mut out = String::with_capacity(fields.iter().map(|f| f.text.len() + SEPARATOR.len()).sum());
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            out.push_str(SEPARATOR);
        }
        out.push_str(field.text.trim());
    }
    out
}

/// The page as MAGE's environment shows it: `text` without everything up to the goal, each part in quotes.
pub(super) fn quoted(fields: &[Field<'_>], goal: &str) -> String {
    // A goal's own separator would split it, and then it is not found.
    let Some(at) = fields.iter().position(|f| f.text.trim() == goal.trim()) else { return text(fields) };
    let mut out = String::new();
    for (i, field) in fields[at + 1..].iter().enumerate() {
        if i > 0 {
            out.push_str(SEPARATOR);
        }
        out.push('\'');
        out.push_str(field.text.trim());
        out.push('\'');
    }
    out
}

/// The page in the form `text_rich`.
pub(super) fn text_rich(fields: &[Field<'_>]) -> String {
    let mut clicked = String::new();
    let mut out = String::new();
    for Field { text, kind } in fields {
        match kind {
            Kind::Plain => out.push_str(text),
            Kind::Button => out.push_str(&format!("[button] {text} [button_]")),
            Kind::Value { chosen: false } => out.push_str(&format!("  [button] {text} [button_]")),
            Kind::Value { chosen: true } => {
                out.push_str(&format!("  [clicked button] {text} [clicked button_]"));
                clicked.insert_str(0, &format!("You have clicked {text}.\n"));
            }
            Kind::Link { visited: false } => out.push_str(&format!("\n[button] {text} [button_]")),
            Kind::Link { visited: true } => out.push_str(&format!("\n[clicked button] {text} [clicked button_]")),
        }
        out.push('\n');
    }
    clicked + &out
}

/// What can be clicked: buttons in order, then products, then option values, each name once.
pub(super) fn clickables(shop: &Shop, session: &Session) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let fields = fields(shop, session);
    let of_kind =
        |wanted: fn(&Kind) -> bool| fields.iter().filter(move |f| wanted(&f.kind)).map(|f| f.text.to_lowercase());
    names.extend(of_kind(|k| *k == Kind::Button));
    names.extend(of_kind(|k| matches!(k, Kind::Link { .. })));
    if session.place == Place::Item {
        let options = session.product_on_page(shop).map_or(&[][..], |p| &p.options);
        names.extend(options.iter().flat_map(|o| &o.values).map(ToString::to_string));
    }
    let mut seen = std::collections::HashSet::with_capacity(names.len());
    let first: Vec<bool> = names.iter().map(|name| seen.insert(name.as_str())).collect();
    let mut first = first.into_iter();
    names.retain(|_| first.next().unwrap_or(true));
    names
}
