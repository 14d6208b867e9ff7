//! Pages and their text formats.
//!
//! The original renders HTML and converts it back to text. Here a page is the list of its visible texts, from which both
//! formats are rendered: `text`, joined by ` [SEP] `, and `text_rich`, one text per line with buttons marked.

use super::{
    catalogue::Product,
    python_format,
    session::{Page, Session, SubPage},
    shop::Shop,
};
use std::borrow::Cow;

/// Separator of the texts of a page.
pub const SEPARATOR: &str = " [SEP] ";

/// Products per results page.
pub(super) const PRODUCTS_PER_PAGE: usize = 10;

/// A visible text of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageField<'a> {
    text: Cow<'a, str>,
    kind: FieldKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Plain,
    Button,
    /// An option value; chosen values are marked.
    Value {
        chosen: bool,
    },
    /// A product id; visited products are marked.
    Link {
        visited: bool,
    },
}

/// The visible texts of the session's page.
pub(super) fn page_fields<'a>(shop: &'a Shop, session: &'a Session) -> Vec<PageField<'a>> {
    let mut page = PageBuilder(Vec::with_capacity(40));
    let goal = session.goal.text.as_str();
    match session.page {
        Page::Index => {
            page.plain("WebShop");
            page.plain("Instruction: ");
            page.plain(goal);
            page.button("Search");
        }
        Page::Results => page.results(shop, session, goal),
        Page::Item => page.item(shop, session, goal),
        Page::Sub(sub) => page.sub(shop, session, goal, sub),
        Page::Done => page.done(shop, session),
    }
    page.0
}

struct PageBuilder<'a>(Vec<PageField<'a>>);

impl<'a> PageBuilder<'a> {
    /// Adds a text as the original's HTML parser returns it: empty text and white space with a line break are dropped, other
    /// white space becomes one space.
    fn add(&mut self, text: impl Into<Cow<'a, str>>, kind: FieldKind) {
        let text = text.into();
        if text.is_empty() {
            return;
        }
        let blank = text.bytes().all(|b| matches!(b, b' ' | b'\n' | b'\t' | b'\x0c' | b'\r'));
        match blank {
            true if text.contains('\n') => {}
            true => self.0.push(PageField { text: Cow::Borrowed(" "), kind }),
            false => self.0.push(PageField { text, kind }),
        }
    }

    fn plain(&mut self, text: impl Into<Cow<'a, str>>) {
        self.add(text, FieldKind::Plain);
    }

    fn button(&mut self, text: &'static str) {
        self.add(text, FieldKind::Button);
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
            self.add(&*product.asin, FieldKind::Link { visited });
            self.plain(&*product.title);
            self.plain(product.price.tag());
        }
    }

    fn item(&mut self, shop: &'a Shop, session: &'a Session, goal: &'a str) {
        let Some(product) = session.product_on_page(shop) else { return };
        self.head(goal);
        self.button("< Prev");
        // The original searches for the quoted value anywhere in the page's URL, which rarely contains quotes.
        let address = Some(session.item_url()).filter(|address| address.contains('"'));
        for option in &product.options {
            self.plain(&*option.name);
            for value in &option.values {
                let chosen = address.as_ref().is_some_and(|address| address.contains(&format!("\"{value}\"")));
                self.add(&**value, FieldKind::Value { chosen });
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
        self.plain(&*product.product_category);
    }

    /// The confirmation page, hidden parts included. The original passes it few of the values it displays.
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

/// The page in format `text`.
pub(super) fn text(fields: &[PageField<'_>]) -> String {
    let mut out = String::with_capacity(fields.iter().map(|f| f.text.len() + SEPARATOR.len()).sum());
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            out.push_str(SEPARATOR);
        }
        out.push_str(field.text.trim());
    }
    out
}

/// The page as MAGE's environment shows it: format `text` without everything up to the goal, each text in quotes.
pub(super) fn quoted(fields: &[PageField<'_>], goal: &str) -> String {
    // A goal that contains the separator is split and not found.
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

/// The page in format `text_rich`.
pub(super) fn text_rich(fields: &[PageField<'_>]) -> String {
    let mut clicked = String::new();
    let mut out = String::new();
    for PageField { text, kind } in fields {
        match kind {
            FieldKind::Plain => out.push_str(text),
            FieldKind::Button => out.push_str(&format!("[button] {text} [button_]")),
            FieldKind::Value { chosen: false } => out.push_str(&format!("  [button] {text} [button_]")),
            FieldKind::Value { chosen: true } => {
                out.push_str(&format!("  [clicked button] {text} [clicked button_]"));
                clicked.insert_str(0, &format!("You have clicked {text}.\n"));
            }
            FieldKind::Link { visited: false } => out.push_str(&format!("\n[button] {text} [button_]")),
            FieldKind::Link { visited: true } => out.push_str(&format!("\n[clicked button] {text} [clicked button_]")),
        }
        out.push('\n');
    }
    clicked + &out
}

/// Clickable names: buttons in order, then products, then option values, without duplicates.
pub(super) fn clickables(shop: &Shop, session: &Session) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let fields = page_fields(shop, session);
    let of_kind =
        |wanted: fn(&FieldKind) -> bool| fields.iter().filter(move |f| wanted(&f.kind)).map(|f| f.text.to_lowercase());
    names.extend(of_kind(|k| *k == FieldKind::Button));
    names.extend(of_kind(|k| matches!(k, FieldKind::Link { .. })));
    if session.page == Page::Item {
        let options = session.product_on_page(shop).map_or(&[][..], |p| &p.options);
        names.extend(options.iter().flat_map(|o| &o.values).map(ToString::to_string));
    }
    let mut seen = std::collections::HashSet::with_capacity(names.len());
    let first: Vec<bool> = names.iter().map(|name| seen.insert(name.as_str())).collect();
    let mut first = first.into_iter();
    names.retain(|_| first.next().unwrap_or(true));
    names
}
