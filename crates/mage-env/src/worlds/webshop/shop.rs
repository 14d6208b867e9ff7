//! What do all buyers of one shop share?
//!
//! The catalogue, its search index and its goals: made once, then only read, by any number of visits at a time.

use super::{
    bm25::Index,
    catalogue::{Catalogue, Product},
    goals::{Draws, Goal, GoalId, GoalKind, goal, goal_ids, shuffled, weights},
    splits::{Split, SplitLists},
};
use crate::{Result, Seed};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// How many products a search gives at most.
pub const MOST_RESULTS: usize = 50;

/// A shop: what is on sale, how it is found, and what people are sent there for.
pub struct Shop {
    catalogue: Catalogue,
    index: Index,
    synthetic: GoalTable,
    human: GoalTable,
    /// The terms of each product's title, by the index's numbers; found when first asked for.
    titles: Vec<OnceLock<Vec<u32>>>,
}

impl Shop {
    /// Opens a shop.
    pub fn new(catalogue: Catalogue) -> Result<Self> {
        let products = catalogue.products();
        let index = Index::build(products.iter().map(Product::searchable), products.iter().map(|p| &*p.asin));
        let table = |kind| Ok(GoalTable::new(kind, goal_ids(&catalogue, kind)?));
        let titles = vec![OnceLock::new(); products.len()];
        Ok(Shop { synthetic: table(GoalKind::Synthetic)?, human: table(GoalKind::Human)?, index, titles, catalogue })
    }

    /// What is on sale.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The search index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The different terms of a product's title, by the index's numbers, in order.
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

    /// What a search finds, best first. A first word in angle brackets lists instead of searching, as in the original: `<c>`
    /// a department, `<q>` a kind, `<a>` what has an attribute, `<r>` anything.
    pub fn search(&self, words: &str) -> Vec<u32> {
        let (first, rest) = words.split_once(' ').unwrap_or((words, ""));
        let all = |wanted: &dyn Fn(&Product) -> bool| {
            let numbered = self.catalogue.products().iter().enumerate();
            numbered.filter(|(_, p)| wanted(p)).map(|(i, _)| i as u32).collect()
        };
        match first {
            "<c>" => all(&|p| *p.category == *rest.split(' ').next().unwrap_or("").trim()),
            "<q>" => all(&|p| *p.query == *rest.trim()),
            // The original ends in an error here, and draws anew on every page for <r>.
            "<a>" => all(&|p| p.attributes.iter().any(|a| **a == *rest.trim())),
            "<r>" => self.anything(rest),
            _ => self.index.search(words, MOST_RESULTS).into_iter().map(|hit| hit.document).collect(),
        }
    }

    fn anything(&self, words: &str) -> Vec<u32> {
        use rand::RngExt;
        let mut rng = Seed::new(0).child("webshop anything").child(words).rng();
        let mut pool: Vec<u32> = (0..self.catalogue.products().len() as u32).collect();
        let count = pool.len().min(MOST_RESULTS);
        (0..count).map(|_| pool.swap_remove(rng.random_range(0..pool.len()))).collect()
    }
}

/// All goals of one kind, and what seeds of the original make of them.
pub(super) struct GoalTable {
    kind: GoalKind,
    ids: Vec<GoalId>,
    splits: OnceLock<SplitLists>,
    weights: OnceLock<Vec<f64>>,
    /// By seed of the original.
    seeds: Mutex<HashMap<u32, Arc<Seeded>>>,
}

/// So many seeds are remembered: more than the released code has workers.
pub(super) const MOST_SEEDS: usize = 256;

/// What one seed of the original decides.
pub(super) struct Seeded {
    pub(super) draws: Draws,
    /// The goals' numbers in shuffled order.
    pub(super) order: Vec<u32>,
}

impl GoalTable {
    fn new(kind: GoalKind, ids: Vec<GoalId>) -> Self {
        GoalTable { kind, ids, splits: OnceLock::new(), weights: OnceLock::new(), seeds: Mutex::default() }
    }

    /// How many goals there are.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Prices, limits and order at a seed of the original.
    pub(super) fn seeded(&self, catalogue: &Catalogue, seed: u32) -> Arc<Seeded> {
        let mut seeds = self.seeds.lock().unwrap_or_else(PoisonError::into_inner);
        if seeds.len() >= MOST_SEEDS && !seeds.contains_key(&seed) {
            seeds.clear();
        }
        Arc::clone(seeds.entry(seed).or_insert_with(|| {
            let draws = Draws::new(catalogue, &self.ids, self.kind, seed);
            Arc::new(Seeded { draws, order: shuffled(self.ids.len(), seed) })
        }))
    }

    /// For how many seeds prices, limits and order are at hand.
    #[cfg(test)]
    pub(super) fn seeds_kept(&self) -> usize {
        self.seeds.lock().unwrap().len()
    }

    /// One goal, by its number in the catalogue's order.
    pub(super) fn goal(&self, catalogue: &Catalogue, draws: &Draws, number: u32) -> Goal {
        goal(catalogue, self.ids[number as usize], self.kind, draws, number as usize)
    }

    /// The numbers of the goals of a split; `None` for those of the released code.
    pub(super) fn in_split(&self, catalogue: &Catalogue, split: Split) -> Option<&[u32]> {
        self.splits.get_or_init(|| SplitLists::new(catalogue, &self.ids, self.kind)).of(split)
    }

    /// How many goals each split has, in words.
    pub(super) fn split_sizes(&self, catalogue: &Catalogue) -> String {
        self.splits.get_or_init(|| SplitLists::new(catalogue, &self.ids, self.kind)).sizes()
    }

    /// How often the original would draw each goal, in proportion.
    pub(super) fn weights(&self, catalogue: &Catalogue) -> &[f64] {
        self.weights.get_or_init(|| weights(catalogue, &self.ids, self.kind))
    }
}
