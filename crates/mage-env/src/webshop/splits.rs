//! Which goals are for training, and which for testing?
//!
//! By default a goal's own words decide, once and for all: a tenth of the products is kept for `out-of-domain`; of the goals
//! for the others a tenth is `in-domain`, the rest `train`. No goal is in two splits, whatever the seed, and a goal keeps its
//! split when the catalogue grows.
//!
//! The released code instead shuffles all goals with each worker's own seed and takes the first 500 for validation: the same
//! goal is then validated by one worker and trained on by another. `reference-train` and `reference-validation` do that.

use super::{
    catalogue::Catalogue,
    goals::{GoalId, GoalKind, chosen},
};
use crate::Seed;
use serde::{Deserialize, Serialize};

/// Part of the goals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// To learn from.
    #[default]
    Train,
    /// Unseen goals for products that others of are trained on.
    InDomain,
    /// Goals for unseen products.
    OutOfDomain,
    /// What the released code trains on.
    ReferenceTrain,
    /// What the released code validates on.
    ReferenceValidation,
}

impl Split {
    /// All of them, by the names populations use.
    pub const ALL: [(&'static str, Split); 5] = [
        ("train", Split::Train),
        ("in-domain", Split::InDomain),
        ("out-of-domain", Split::OutOfDomain),
        ("reference-train", Split::ReferenceTrain),
        ("reference-validation", Split::ReferenceValidation),
    ];
}

/// One in so many products, and one in so many goals of the others, is kept for testing.
const HELD_OUT: u64 = 10;

/// The goals of each split that does not leak, by number.
#[derive(Default)]
pub(super) struct SplitLists {
    train: Vec<u32>,
    in_domain: Vec<u32>,
    out_of_domain: Vec<u32>,
}

impl SplitLists {
    pub(super) fn new(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind) -> Self {
        let mut lists = SplitLists::default();
        let root = Seed::new(0).child("webshop split");
        for (number, id) in ids.iter().enumerate() {
            let product = catalogue.product(id.product);
            let of_product = root.child(&product.asin);
            let list = if of_product.value().is_multiple_of(HELD_OUT) {
                &mut lists.out_of_domain
            } else {
                // Goals that ask for the same must not be told apart: the words decide, not the number.
                let words = match kind {
                    GoalKind::Human => product.human_wishes[id.variant as usize].text.to_string(),
                    GoalKind::Synthetic => {
                        chosen(product, id.variant).iter().map(|(n, v)| format!("{n}={v};")).collect()
                    }
                };
                let held_out = of_product.child("goal").child(&words).value().is_multiple_of(HELD_OUT);
                if held_out { &mut lists.in_domain } else { &mut lists.train }
            };
            list.push(number as u32);
        }
        lists
    }

    /// The goals of a split; `None` for the released code's, which are not lists of goals.
    pub(super) fn of(&self, split: Split) -> Option<&[u32]> {
        match split {
            Split::Train => Some(&self.train),
            Split::InDomain => Some(&self.in_domain),
            Split::OutOfDomain => Some(&self.out_of_domain),
            Split::ReferenceTrain | Split::ReferenceValidation => None,
        }
    }
}

/// How many goals at the head of a worker's list the released code validates on.
pub(super) const VALIDATION_GOALS: usize = 500;

/// Which worker of the released code a task stands for, by seed: eight groups train at seeds from 0, and 128 workers validate
/// at seeds from 1000.
pub(super) fn worker(split: Split, luck: u64) -> u32 {
    match split {
        Split::ReferenceValidation => 1000 + (luck % 128) as u32,
        _ => (luck % 8) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webshop::{generate::generate, goals::goal_ids};
    use std::collections::HashSet;

    #[test]
    fn no_goal_and_no_held_out_product_is_in_two_splits() {
        let catalogue = generate(Seed::new(0), 1000);
        let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
        let lists = SplitLists::new(&catalogue, &ids, GoalKind::Synthetic);
        let [train, near, far] = [Split::Train, Split::InDomain, Split::OutOfDomain].map(|s| lists.of(s).unwrap());
        assert_eq!(train.len() + near.len() + far.len(), ids.len());
        let products = |list: &[u32]| list.iter().map(|g| ids[*g as usize].product).collect::<HashSet<_>>();
        assert!(products(far).is_disjoint(&products(train)) && products(far).is_disjoint(&products(near)));
        let words = |list: &[u32]| {
            let text = |g: &u32| {
                let id = ids[*g as usize];
                (id.product, chosen(catalogue.product(id.product), id.variant))
            };
            list.iter().map(text).collect::<HashSet<_>>()
        };
        assert!(words(train).is_disjoint(&words(near)));
        for list in [near, far] {
            assert!(list.len() * 20 > ids.len() && list.len() * 5 < ids.len(), "{} of {}", list.len(), ids.len());
        }
    }

    #[test]
    fn a_larger_catalogue_keeps_every_goal_where_it_was() {
        let split_of = |count| {
            let catalogue = generate(Seed::new(0), count);
            let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
            let lists = SplitLists::new(&catalogue, &ids, GoalKind::Synthetic);
            lists
                .of(Split::InDomain)
                .unwrap()
                .iter()
                .map(|g| (ids[*g as usize].product, ids[*g as usize].variant))
                .collect::<Vec<_>>()
        };
        let (small, large) = (split_of(100), split_of(200));
        assert_eq!(small, large[..small.len()]);
    }
}
