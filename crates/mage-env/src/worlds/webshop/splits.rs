//! Splits of the goals.
//!
//! The default splits are fixed: a tenth of the products is held out for `out-of-domain`; of the goals for the other products
//! a tenth is `in-domain`, the rest `train`. Goals are assigned by a hash of their text (ignoring case, punctuation and the
//! price limit, which depends on the seed), not by product or index, since products may share an instruction. A goal with the
//! text of a held-out product's goal is in no split. Therefore no instruction is in two splits, no product of `out-of-domain`
//! is in another split for any seed, and no goal changes its split when the catalogue grows.
//!
//! The released code instead shuffles all goals with each worker's seed and validates on the first 500, so that a goal may be
//! in one worker's validation set and another's training set. `reference-train` and `reference-validation` reproduce this.

use super::{
    catalogue::Catalogue,
    goals::{GoalId, GoalKind, goal_requirements},
};
use crate::Seed;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Split of the goals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GoalSplit {
    /// Training goals.
    #[default]
    Train,
    /// Held-out goals for products of the training split.
    InDomain,
    /// Goals for held-out products.
    OutOfDomain,
    /// Training goals of the released code.
    ReferenceTrain,
    /// Validation goals of the released code.
    ReferenceValidation,
}

impl GoalSplit {
    /// All splits with their names in populations.
    pub const ALL: [(&'static str, GoalSplit); 5] = [
        ("train", GoalSplit::Train),
        ("in-domain", GoalSplit::InDomain),
        ("out-of-domain", GoalSplit::OutOfDomain),
        ("reference-train", GoalSplit::ReferenceTrain),
        ("reference-validation", GoalSplit::ReferenceValidation),
    ];

    /// The name in populations.
    pub fn name(self) -> &'static str {
        GoalSplit::ALL.iter().find(|(_, split)| *split == self).map_or("", |(name, _)| name)
    }
}

/// One of this many products, and one of this many goals of the other products, is held out.
const HELD_OUT: u64 = 10;

/// Goal indices of the disjoint splits.
#[derive(Default)]
pub(super) struct SplitLists {
    train: Vec<u32>,
    in_domain: Vec<u32>,
    out_of_domain: Vec<u32>,
    /// Goals with the text of an out-of-domain goal.
    unassigned: Vec<u32>,
}

impl SplitLists {
    pub(super) fn new(catalogue: &Catalogue, ids: &[GoalId], kind: GoalKind) -> Self {
        let root = Seed::new(0).child("webshop split");
        let held_out = |seed: Seed| seed.value().is_multiple_of(HELD_OUT);
        let is_held_out_product = |id: &GoalId| held_out(root.child(&catalogue.product(id.product).asin));
        let words = |id: &GoalId| {
            let (text, ..) = goal_requirements(catalogue.product(id.product), id.variant, kind);
            root.child("goal").child(&normalized(&text))
        };
        let held_out_texts: HashSet<Seed> = ids.iter().filter(|id| is_held_out_product(id)).map(words).collect();
        let mut lists = SplitLists::default();
        for (number, id) in ids.iter().enumerate() {
            let words = words(id);
            let list = match () {
                () if is_held_out_product(id) => &mut lists.out_of_domain,
                () if held_out_texts.contains(&words) => &mut lists.unassigned,
                () if held_out(words) => &mut lists.in_domain,
                () => &mut lists.train,
            };
            list.push(number as u32);
        }
        lists
    }

    /// The number of goals in each split and in none, as text.
    pub(super) fn sizes(&self) -> String {
        let SplitLists { train, in_domain, out_of_domain, unassigned } = self;
        let sizes =
            [("train", train), ("in-domain", in_domain), ("out-of-domain", out_of_domain), ("none", unassigned)];
        sizes.map(|(name, list)| format!("{name} {}", list.len())).join(", ")
    }

    /// The goals of a split; `None` for the released code's splits, which are not fixed lists.
    pub(super) fn goals_of(&self, split: GoalSplit) -> Option<&[u32]> {
        match split {
            GoalSplit::Train => Some(&self.train),
            GoalSplit::InDomain => Some(&self.in_domain),
            GoalSplit::OutOfDomain => Some(&self.out_of_domain),
            GoalSplit::ReferenceTrain | GoalSplit::ReferenceValidation => None,
        }
    }
}

/// Lower-case text with single spaces instead of runs of characters other than letters and digits.
fn normalized(text: &str) -> String {
    let lower = text.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Number of goals at the start of a worker's list on which the released code validates.
pub(super) const VALIDATION_GOALS: usize = 500;

/// The seed of the released code's worker that a task corresponds to: 8 training groups have seeds from 0, and 128 validation
/// workers have seeds from 1000.
pub(super) fn reference_seed(split: GoalSplit, value: u64) -> u32 {
    match split {
        GoalSplit::ReferenceValidation => 1000 + (value % 128) as u32,
        _ => (value % 8) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webshop::{
        catalogue::{HumanInstruction, Instruction},
        generator::generate,
        goals::goal_ids,
    };
    use std::collections::HashMap;

    /// Checks that no text and no held-out product is in two splits. Returns the number of goals and of goals in no split.
    fn check(catalogue: &Catalogue, kind: GoalKind) -> (usize, usize) {
        let ids = goal_ids(catalogue, kind).unwrap();
        let lists = SplitLists::new(catalogue, &ids, kind);
        let splits =
            [GoalSplit::Train, GoalSplit::InDomain, GoalSplit::OutOfDomain].map(|s| lists.goals_of(s).unwrap());
        let [train, in_domain, out_of_domain] = splits;
        assert_eq!(train.len() + in_domain.len() + out_of_domain.len() + lists.unassigned.len(), ids.len());
        let products = |list: &[u32]| list.iter().map(|g| ids[*g as usize].product).collect::<HashSet<_>>();
        assert!(
            products(out_of_domain).is_disjoint(&products(train))
                && products(out_of_domain).is_disjoint(&products(in_domain))
        );
        // The text as shown, not as normalized for the split.
        let texts = |list: &[u32]| {
            let text = |g: &u32| {
                let id = ids[*g as usize];
                goal_requirements(catalogue.product(id.product), id.variant, kind).0.to_lowercase()
            };
            list.iter().map(text).collect::<HashSet<_>>()
        };
        let [train, in_domain, out_of_domain] = splits.map(texts);
        assert!(
            train.is_disjoint(&in_domain) && train.is_disjoint(&out_of_domain) && in_domain.is_disjoint(&out_of_domain)
        );
        (ids.len(), lists.unassigned.len())
    }

    #[test]
    fn no_instruction_and_no_held_out_product_is_in_two_splits() {
        for seed in 0..8 {
            let catalogue = generate(Seed::new(seed), 2000);
            let (goals, unassigned) = check(&catalogue, GoalKind::Synthetic);
            assert!(unassigned * 50 < goals, "{unassigned} of {goals}");
        }
        let catalogue = generate(Seed::new(0), 1000);
        let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
        let lists = SplitLists::new(&catalogue, &ids, GoalKind::Synthetic);
        for list in [&lists.in_domain, &lists.out_of_domain] {
            assert!(list.len() * 20 > ids.len() && list.len() * 5 < ids.len(), "{} of {}", list.len(), ids.len());
        }
    }

    /// Worst case: 200 products share three instructions, synthetic and human.
    #[test]
    fn products_that_share_instructions_are_not_split() {
        let text = |i: usize| ["Find me: red cups", "find me Red Cups.", "a green hat"][i % 3].into();
        let mut products = generate(Seed::new(0), 200).products().to_vec();
        for (i, product) in products.iter_mut().enumerate() {
            let attributes: Vec<Box<str>> = vec!["soft".into()];
            product.options.clear();
            product.instruction = Some(Instruction { text: text(i), attributes: attributes.clone() });
            product.human_instructions = vec![HumanInstruction { text: text(i + 1), attributes, options: vec![] }];
        }
        let catalogue = Catalogue::new(products).unwrap();
        for kind in [GoalKind::Synthetic, GoalKind::Human] {
            let (goals, unassigned) = check(&catalogue, kind);
            assert!(goals == 200 && unassigned > 100, "all but those of held-out products: {unassigned}");
        }
    }

    #[test]
    fn texts_are_compared_without_case_and_punctuation() {
        assert_eq!(normalized("Find me: women's  Tops, with size: X-Large!"), "find me women s tops with size x large");
        assert_eq!(normalized("Größe 5½"), "größe 5½");
    }

    #[test]
    fn a_goal_never_changes_split_when_the_catalogue_grows() {
        let splits = |count| {
            let catalogue = generate(Seed::new(0), count);
            let ids = goal_ids(&catalogue, GoalKind::Synthetic).unwrap();
            let lists = SplitLists::new(&catalogue, &ids, GoalKind::Synthetic);
            let mut split_of: HashMap<(u32, u32), GoalSplit> = HashMap::new();
            for split in [GoalSplit::Train, GoalSplit::InDomain, GoalSplit::OutOfDomain] {
                let goals = lists.goals_of(split).unwrap().iter().map(|g| ids[*g as usize]);
                split_of.extend(goals.map(|id| ((id.product, id.variant), split)));
            }
            split_of
        };
        let (small, large) = (splits(300), splits(3000));
        let (is_held_out_product, gone): (Vec<_>, Vec<_>) =
            small.iter().partition(|(goal, _)| large.contains_key(*goal));
        assert!(is_held_out_product.iter().all(|(goal, split)| large[*goal] == **split));
        assert!(gone.len() * 20 < small.len(), "some have the text of a held-out product's goal: {}", gone.len());
    }
}
