//! The WebShop environment.

use super::{
    action::{self, ShopAction},
    compact,
    goals::{GoalKind, ShoppingGoal},
    options::ObservationFormat,
    page::{self, page_fields},
    session::{Page, Session},
    shop::{SeededGoals, Shop},
    text_ui,
};
use crate::{Anchor, End, Env, Observation, Outcome, ParsedAction, Seed, Step};
use mage_rng::weighted_index;
use std::sync::Arc;

/// A goal in a shop.
pub(super) struct WebshopEnv {
    pub(super) shop: Arc<Shop>,
    pub(super) seeded: Arc<SeededGoals>,
    pub(super) kind: GoalKind,
    /// The task's goal.
    pub(super) goal: Arc<ShoppingGoal>,
    pub(super) format: ObservationFormat,
    pub(super) faithful: bool,
    pub(super) seed: Seed,
    pub(super) episode: u32,
    pub(super) session: Session,
}

impl WebshopEnv {
    fn observe(&self) -> Observation {
        let fields = page_fields(&self.shop, &self.session);
        let text = match self.format {
            ObservationFormat::TextRich => page::text_rich(&fields),
            ObservationFormat::Text => page::text(&fields),
            // The first page states the goal; later pages omit it.
            ObservationFormat::Quoted if self.session.page() == Page::Index => page::text(&fields),
            ObservationFormat::Quoted => page::quoted(&fields, &self.goal.text),
        };
        Observation { text, compact: compact::observation(&self.shop, &self.session) }
    }

    /// The goal after a purchase in the released code: a random one, although the prompt still states the task's goal.
    fn goal_after_purchase(&self) -> Arc<ShoppingGoal> {
        let table = self.shop.goals(self.kind);
        let weights = table.weights(self.shop.catalogue());
        let seed = self.seed.child("goal after purchase").at(u64::from(self.episode));
        let number = weighted_index(weights.iter().copied(), &mut seed.rng());
        Arc::new(table.goal(self.shop.catalogue(), &self.seeded.prices, number as u32))
    }
}

impl Env for WebshopEnv {
    fn reset(&mut self, episode: u32) -> Observation {
        let goal = match (self.faithful && episode > 0, self.session.page()) {
            (false, _) => Arc::clone(&self.goal),
            (true, Page::Done) => self.goal_after_purchase(),
            (true, _) => Arc::clone(&self.session.goal),
        };
        self.episode = episode;
        let start = |last: &Session, goal: Arc<ShoppingGoal>| match Arc::ptr_eq(&last.goal, &goal) {
            true => last.restart(),
            false => Session::new(goal, last.show_attributes),
        };
        // The first page always shows the task's goal, even if the session continues with another one.
        self.session = start(&self.session, Arc::clone(&self.goal));
        let first = self.observe();
        self.session = start(&self.session, goal);
        first
    }

    fn parse(&self, text: &str) -> ParsedAction {
        let text = text.trim();
        // Full actions contain a bracket, compact words do not.
        if !text.contains('[') {
            let by_word = compact::actions(&self.shop, &self.session).into_iter().find(|(word, _)| word == text);
            if let Some((_, action)) = by_word {
                return ParsedAction::Act(action);
            }
        }
        match action::parse(&text.to_lowercase()) {
            Ok(ShopAction::Search(words)) => ParsedAction::Act(format!("search[{words}]")),
            Ok(ShopAction::Click(name)) => ParsedAction::Act(format!("click[{name}]")),
            Err(reason) => ParsedAction::invalid(reason),
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        let action = match action {
            ParsedAction::Act(text) => action::parse(text).ok(),
            ParsedAction::Invalid { .. } => None,
        };
        let bought_before = self.session.bought();
        let valid = action.is_some_and(|a| self.session.act(&self.shop, &self.seeded.prices, &a));
        let bought = self.session.bought();
        Step {
            observation: self.observe(),
            reward: if bought_before.is_none() { bought.map_or(0.0, |s| s.total as f32) } else { 0.0 },
            valid,
            end: bought.map(|score| End::Terminated {
                outcome: if score.total == 1.0 { Outcome::Won } else { Outcome::Lost },
                score: score.total as f32,
            }),
        }
    }

    fn legal(&self) -> Option<Vec<String>> {
        Some(match self.session.page() {
            Page::Done => Vec::new(),
            Page::Index => vec![compact::instruction_search(&self.session.goal)],
            _ => page::clickables(&self.shop, &self.session).into_iter().map(|n| format!("click[{n}]")).collect(),
        })
    }

    fn allows(&self, action: &str) -> bool {
        match action::parse(action) {
            _ if self.session.page() == Page::Done => false,
            Ok(ShopAction::Search(_)) => true,
            Ok(ShopAction::Click(name)) => self.session.can_click(&self.shop, &name),
            Err(_) => false,
        }
    }

    fn compact_legal(&self) -> Option<Vec<String>> {
        Some(compact::actions(&self.shop, &self.session).into_iter().map(|(word, _)| word).collect())
    }

    /// The page as MAGE groups by it and, unless `faithful`, the chosen options, which the page does not show.
    fn anchor(&self) -> Anchor {
        let mut anchor = page::quoted(&page_fields(&self.shop, &self.session), &self.goal.text);
        if !self.faithful {
            for (name, value) in &self.session.chosen {
                anchor.push_str(&format!("{}{name}={value}", page::SEPARATOR));
            }
        }
        Anchor(anchor)
    }

    fn render(&self) -> Option<String> {
        Some(text_ui::render(&self.shop, &self.session, &self.goal.text))
    }
}
