//! Fuzz target: reading a WebShop catalogue never panics, and a shop built from it can be searched.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_env::webshop::{Shop, catalogue_from_text};

fuzz_target!(|text: &str| {
    // The first line is the attribute file, the rest the product list.
    let (attributes, products) = text.split_once('\n').unwrap_or(("{}", text));
    let Ok(catalogue) = catalogue_from_text(products, attributes) else { return };
    assert!(!catalogue.products().is_empty());
    for product in catalogue.products() {
        assert!(catalogue.find(&product.asin).is_some());
        assert!(product.price.tag().starts_with('$'));
    }
    let words: String = catalogue.products().iter().take(3).map(|p| p.title.to_lowercase() + " ").collect();
    if let Ok(shop) = Shop::new(catalogue) {
        assert!(shop.index().search(&words, 50).len() <= 50);
    }
});
