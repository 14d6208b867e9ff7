//! Page rendering for human players.
//!
//! It contains all texts of the page: the instruction, one line per product or option, and the buttons. Clickable elements
//! are in brackets; chosen values have a tick.

use super::{
    catalogue::Product,
    session::{Page, Session, SubPage},
    shop::Shop,
};

/// Line width.
const WIDTH: usize = 100;

/// Renders the page of a session.
pub(super) fn render(shop: &Shop, session: &Session, instruction: &str) -> String {
    let mut lines = wrapped("Instruction: ", instruction);
    lines.push(String::new());
    match session.page {
        Page::Index => lines.push("search[words] searches for products.".to_owned()),
        Page::Results => results(shop, session, &mut lines),
        Page::Item => item(shop, session, &mut lines),
        Page::Sub(sub) => sub_page(shop, session, sub, &mut lines),
        Page::Done => done(shop, session, &mut lines),
    }
    lines.join("\n")
}

fn results(shop: &Shop, session: &Session, lines: &mut Vec<String>) {
    let page = session.page_number;
    lines.push(format!("Page {page} (Total results: {})", session.results.len()));
    let products = session.shown_results().iter().map(|n| shop.catalogue().product(*n));
    let products: Vec<(&Product, String)> = products.map(|p| (p, p.price.tag())).collect();
    let width = products.iter().map(|(_, price)| price.chars().count()).max().unwrap_or(0);
    for (product, price) in products {
        lines.extend(wrapped(&format!("  [{}]  {price:width$}  ", product.asin), &product.title));
    }
    lines.push(String::new());
    let back = if page > 1 { "[< Prev] " } else { "" };
    lines.push(format!("[Back to Search] {back}[Next >]"));
}

fn item(shop: &Shop, session: &Session, lines: &mut Vec<String>) {
    let Some(product) = session.product_on_page(shop) else { return };
    lines.extend(wrapped("", &product.title));
    lines.push(format!("Price: {}   Rating: N.A.", product.price.tag()));
    for option in &product.options {
        let chosen = session.chosen.iter().find(|(name, _)| *name == option.name).map(|(_, value)| value);
        let mark = |value: &str| if chosen.is_some_and(|c| **c == *value) { "✓ " } else { "" };
        let values = option.values.iter().map(|v| format!("[{}{v}]", mark(v)));
        lines.extend(wrapped(&format!("  {}: ", option.name), &values.collect::<Vec<_>>().join(" ")));
    }
    lines.push(String::new());
    let attributes = if session.show_attributes { "[Attributes] " } else { "" };
    lines.push(format!("[Back to Search] [< Prev] [Description] [Features] [Reviews] {attributes}[Buy Now]"));
}

fn sub_page(shop: &Shop, session: &Session, sub: SubPage, lines: &mut Vec<String>) {
    let Some(product) = session.product_on_page(shop) else { return };
    match sub {
        SubPage::Description => lines.extend(wrapped("", &product.description)),
        SubPage::Features => lines.extend(product.bullets.iter().flat_map(|b| wrapped("- ", b))),
        SubPage::Reviews => lines.push("There are no reviews.".to_owned()),
        SubPage::Attributes => {
            lines.extend(product.attributes.iter().flat_map(|a| wrapped("- ", a)));
            lines.extend([&product.category, &product.query, &product.product_category].map(ToString::to_string));
        }
    }
    lines.push(String::new());
    lines.push("[Back to Search] [< Prev]".to_owned());
}

fn done(shop: &Shop, session: &Session, lines: &mut Vec<String>) {
    lines.push("Thank you for shopping with us!".to_owned());
    if let Some(product) = session.product_on_page(shop) {
        lines.extend(wrapped(&format!("You bought {}: ", product.asin), &product.title));
    }
    for (name, value) in &session.chosen {
        lines.push(format!("  {name}: {value}"));
    }
    if let Some(score) = session.bought {
        lines.push(format!("Your score: {:.3} of 1", score.total));
    }
}

/// Wraps a text with a hanging indent: the first line follows `head`, the others align with it. Overlong words are not split.
fn wrapped(head: &str, text: &str) -> Vec<String> {
    let indent = head.chars().count();
    let mut lines = vec![head.to_owned()];
    let mut used = indent;
    for word in text.split_whitespace() {
        let wide = word.chars().count();
        let line = lines.last_mut().expect("the first line exists");
        if used == indent {
            line.push_str(word);
            used += wide;
        } else if used + 1 + wide <= WIDTH {
            line.push(' ');
            line.push_str(word);
            used += 1 + wide;
        } else {
            lines.push(" ".repeat(indent) + word);
            used = indent + wide;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, EnvSpec, Seed, webshop::WebshopSpec};

    fn shop() -> Box<dyn Env> {
        let task = WebshopSpec.default_population().sample_task("train", 1, Seed::new(1)).unwrap();
        WebshopSpec.build(&task).unwrap()
    }

    #[test]
    fn rendered_pages_contain_all_texts() {
        let mut env = shop();
        let first = env.reset(0);
        let instruction = first.text.split(super::super::SEPARATOR).nth(2).unwrap().to_owned();
        let flat = |env: &dyn Env| env.render().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat(&*env).starts_with(&format!("Instruction: {instruction}")));
        for action in ["search[shoe]", "click[next >]", "product", "click[features]", "click[< prev]", "buy"] {
            let legal = env.legal().unwrap();
            let action = match action {
                "product" => legal.iter().find(|a| a.starts_with("click[g0")).unwrap(),
                "buy" => "click[buy now]",
                other => other,
            };
            let step = env.step(&env.parse(action));
            assert!(step.valid, "{action}");
            let rendered = flat(&*env);
            assert!(rendered.starts_with(&format!("Instruction: {instruction}")));
            if step.end.is_none() {
                // Every text of the page is in the rendering, and every clickable element is in brackets.
                for text in step.observation.text.split(super::super::SEPARATOR) {
                    let text = text.trim_matches('\'').split_whitespace().collect::<Vec<_>>().join(" ");
                    assert!(rendered.contains(&text), "{text:?} is missing after {action}:\n{rendered}");
                }
                let lower = rendered.to_lowercase();
                for click in env.legal().unwrap() {
                    let name = click.strip_prefix("click").unwrap();
                    assert!(lower.contains(name), "{name} is missing after {action}:\n{rendered}");
                }
            }
        }
        assert!(flat(&*env).contains("Your score: "));
    }

    #[test]
    fn chosen_values_have_a_tick() {
        let mut env = shop();
        env.reset(0);
        env.step(&env.parse("search[shoe]"));
        let product = env.legal().unwrap().into_iter().find(|a| a.starts_with("click[g0")).unwrap();
        env.step(&env.parse(&product));
        assert!(!env.render().unwrap().contains('✓'));
        let value = env.legal().unwrap().pop().unwrap();
        env.step(&env.parse(&value));
        let name = value.trim_start_matches("click[");
        assert!(env.render().unwrap().contains(&format!("[✓ {name}")), "{}", env.render().unwrap());
    }

    #[test]
    fn long_texts_are_wrapped_with_a_hanging_indent() {
        let text = "word ".repeat(40) + &"x".repeat(150) + " end";
        let lines = wrapped("Head: ", &text);
        assert!(lines[0].starts_with("Head: word word"));
        assert!(lines[1..].iter().all(|l| l.starts_with("      ") && !l.starts_with("       ")));
        assert!(lines.iter().filter(|l| !l.contains("xx")).all(|l| l.chars().count() <= WIDTH));
        assert_eq!(lines.join(" ").split_whitespace().count(), 43);
    }
}
