//! State shared by all sessions of a shop: catalogue, search index and goals.
//!
//! It is built once and immutable, except for caches.

use super::{
    bm25::SearchIndex,
    catalogue::{Catalogue, Product},
    goals::{GoalId, GoalKind, SeededPrices, ShoppingGoal, build_goal, goal_ids, shuffled, weights},
    splits::{GoalSplit, SplitLists},
};
use crate::{Result, Seed};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Maximum number of results of a search.
pub const MAX_RESULTS: usize = 50;

/// A shop: catalogue, search index and goals.
pub struct Shop {
    catalogue: Catalogue,
    index: SearchIndex,
    synthetic: GoalTable,
    human: GoalTable,
    /// Distinct term ids of each product's title, computed on first use.
    titles: Vec<OnceLock<Vec<u32>>>,
}

impl Shop {
    /// Builds the index and the goals of a catalogue.
    pub fn new(catalogue: Catalogue) -> Result<Self> {
        let products = catalogue.products();
        let index = SearchIndex::build(products.iter().map(Product::search_text), products.iter().map(|p| &*p.asin));
        let table = |kind| Ok(GoalTable::new(kind, goal_ids(&catalogue, kind)?));
        let titles = vec![OnceLock::new(); products.len()];
        Ok(Shop { synthetic: table(GoalKind::Synthetic)?, human: table(GoalKind::Human)?, index, titles, catalogue })
    }

    /// The catalogue.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The search index.
    pub fn index(&self) -> &SearchIndex {
        &self.index
    }

    /// Distinct term ids of a product's title, sorted.
    pub(super) fn title_terms(&self, product: u32) -> &[u32] {
        let find = || self.index.distinct_terms(&self.catalogue.product(product).title).0;
        self.titles[product as usize].get_or_init(find)
    }

    /// The goals of one kind.
    pub(super) fn goals(&self, kind: GoalKind) -> &GoalTable {
        match kind {
            GoalKind::Synthetic => &self.synthetic,
            GoalKind::Human => &self.human,
        }
    }

    /// Search results, best first. As in the original, a first word in angle brackets lists products instead: `<c>` by
    /// category, `<q>` by query, `<a>` by attribute, `<r>` at random.
    pub fn search(&self, words: &str) -> Vec<u32> {
        let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
        let all = |wanted: &dyn Fn(&Product) -> bool| {
            let numbered = self.catalogue.products().iter().enumerate();
            numbered.filter(|(_, p)| wanted(p)).map(|(i, _)| i as u32).collect()
        };
        match first {
            "<c>" => all(&|p| *p.category == *rest.split(' ').next().unwrap_or("").trim()),
            "<q>" => all(&|p| *p.query == *rest.trim()),
            // The original raises an error for <a>, and resamples on every page for <r>.
            "<a>" => all(&|p| p.attributes.iter().any(|a| **a == *rest.trim())),
            "<r>" => self.random_products(rest),
            _ => self.index.search(words, MAX_RESULTS).into_iter().map(|hit| hit.document).collect(),
        }
    }

    fn random_products(&self, words: &str) -> Vec<u32> {
        use rand::RngExt;
        let mut rng = Seed::new(0).child("webshop anything").child(words).rng();
        let mut pool: Vec<u32> = (0..self.catalogue.products().len() as u32).collect();
        let count = pool.len().min(MAX_RESULTS);
        (0..count).map(|_| pool.swap_remove(rng.random_range(0..pool.len()))).collect()
    }
}

/// All goals of one kind, and what the original derives from its seeds.
pub(super) struct GoalTable {
    kind: GoalKind,
    ids: Vec<GoalId>,
    splits: OnceLock<SplitLists>,
    weights: OnceLock<Vec<f64>>,
    /// Cache by seed of the original.
    seeds: Mutex<HashMap<u32, Arc<SeededGoals>>>,
}

/// Maximum number of cached seeds; the released code has fewer workers.
pub(super) const MAX_CACHED_SEEDS: usize = 256;

/// Results of one seed of the original.
pub(super) struct SeededGoals {
    pub(super) prices: SeededPrices,
    /// Goal indices in shuffled order.
    pub(super) order: Vec<u32>,
}

impl GoalTable {
    fn new(kind: GoalKind, ids: Vec<GoalId>) -> Self {
        GoalTable { kind, ids, splits: OnceLock::new(), weights: OnceLock::new(), seeds: Mutex::default() }
    }

    /// Number of goals.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Prices, limits and goal order for a seed of the original.
    pub(super) fn seeded(&self, catalogue: &Catalogue, seed: u32) -> Arc<SeededGoals> {
        let mut seeds = self.seeds.lock().unwrap_or_else(PoisonError::into_inner);
        if seeds.len() >= MAX_CACHED_SEEDS && !seeds.contains_key(&seed) {
            seeds.clear();
        }
        Arc::clone(seeds.entry(seed).or_insert_with(|| {
            let prices = SeededPrices::new(catalogue, &self.ids, self.kind, seed);
            Arc::new(SeededGoals { prices, order: shuffled(self.ids.len(), seed) })
        }))
    }

    /// Number of cached seeds.
    #[cfg(test)]
    pub(super) fn cached_seeds(&self) -> usize {
        self.seeds.lock().unwrap().len()
    }

    /// The goal with this index in the catalogue's order.
    pub(super) fn goal(&self, catalogue: &Catalogue, prices: &SeededPrices, number: u32) -> ShoppingGoal {
        build_goal(catalogue, self.ids[number as usize], self.kind, prices, number as usize)
    }

    /// Goal indices of a split; `None` for the splits of the released code.
    pub(super) fn in_split(&self, catalogue: &Catalogue, split: GoalSplit) -> Option<&[u32]> {
        self.splits.get_or_init(|| SplitLists::new(catalogue, &self.ids, self.kind)).goals_of(split)
    }

    /// The number of goals in each split, as text.
    pub(super) fn split_sizes(&self, catalogue: &Catalogue) -> String {
        self.splits.get_or_init(|| SplitLists::new(catalogue, &self.ids, self.kind)).sizes()
    }

    /// Sampling weights of the goals in the original.
    pub(super) fn weights(&self, catalogue: &Catalogue) -> &[f64] {
        self.weights.get_or_init(|| weights(catalogue, &self.ids, self.kind))
    }
}
