//! What does one buyer face?

use super::{
    action::{self, Action},
    compact,
    goals::{Goal, GoalKind},
    options::ObservationForm,
    page::{self, fields},
    session::{Place, Session},
    shop::{Seeded, Shop},
    text_ui,
};
use crate::{Anchor, End, Env, Observation, Outcome, ParsedAction, Seed, Step};
use mage_rng::weighted_index;
use std::sync::Arc;

/// One goal in a shop, to be attempted again and again.
pub(super) struct WebshopEnv {
    pub(super) shop: Arc<Shop>,
    pub(super) seeded: Arc<Seeded>,
    pub(super) kind: GoalKind,
    /// What the buyer was sent out for.
    pub(super) goal: Arc<Goal>,
    pub(super) form: ObservationForm,
    pub(super) faithful: bool,
    pub(super) seed: Seed,
    pub(super) episode: u32,
    pub(super) session: Session,
}

impl WebshopEnv {
    fn observe(&self) -> Observation {
        let fields = fields(&self.shop, &self.session);
        let text = match self.form {
            ObservationForm::TextRich => page::text_rich(&fields),
            ObservationForm::Text => page::text(&fields),
            // The first page tells the goal; later ones need not repeat it.
            ObservationForm::Quoted if self.session.place() == Place::Index => page::text(&fields),
            ObservationForm::Quoted => page::quoted(&fields, &self.goal.text),
        };
        Observation { text, compact: compact::observation(&self.shop, &self.session) }
    }

    /// The released code goes on with a random goal after a purchase, while the prompt still names the first.
    fn goal_after_purchase(&self) -> Arc<Goal> {
        let table = self.shop.goals(self.kind);
        let weights = table.weights(self.shop.catalogue());
        let luck = self.seed.child("goal after purchase").at(u64::from(self.episode));
        let number = weighted_index(weights.iter().copied(), &mut luck.rng());
        Arc::new(table.goal(self.shop.catalogue(), &self.seeded.draws, number as u32))
    }
}

impl Env for WebshopEnv {
    fn reset(&mut self, episode: u32) -> Observation {
        let goal = match (self.faithful && episode > 0, self.session.place()) {
            (false, _) => Arc::clone(&self.goal),
            (true, Place::Done) => self.goal_after_purchase(),
            (true, _) => Arc::clone(&self.session.goal),
        };
        self.episode = episode;
        let visit = |last: &Session, goal: Arc<Goal>| match Arc::ptr_eq(&last.goal, &goal) {
            true => last.afresh(),
            false => Session::new(goal, last.show_attributes),
        };
        // What is shown first is always the task's goal, even where the released code has changed it behind the page.
        self.session = visit(&self.session, Arc::clone(&self.goal));
        let first = self.observe();
        self.session = visit(&self.session, goal);
        first
    }

    fn parse(&self, text: &str) -> ParsedAction {
        let text = text.trim();
        // No word has a bracket, and every action written out has.
        if !text.contains('[') {
            let by_word = compact::actions(&self.shop, &self.session).into_iter().find(|(word, _)| word == text);
            if let Some((_, action)) = by_word {
                return ParsedAction::Act(action);
            }
        }
        match action::read(&text.to_lowercase()) {
            Ok(Action::Search(words)) => ParsedAction::Act(format!("search[{words}]")),
            Ok(Action::Click(name)) => ParsedAction::Act(format!("click[{name}]")),
            Err(reason) => ParsedAction::invalid(reason),
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        let action = match action {
            ParsedAction::Act(text) => action::read(text).ok(),
            ParsedAction::Invalid { .. } => None,
        };
        let over = self.session.bought();
        let valid = action.is_some_and(|a| self.session.act(&self.shop, &self.seeded.draws, &a));
        let bought = self.session.bought();
        Step {
            observation: self.observe(),
            reward: if over.is_none() { bought.map_or(0.0, |s| s.total as f32) } else { 0.0 },
            valid,
            end: bought.map(|score| End::Terminated {
                outcome: if score.total == 1.0 { Outcome::Won } else { Outcome::Lost },
                score: score.total as f32,
            }),
        }
    }

    fn legal(&self) -> Option<Vec<String>> {
        Some(match self.session.place() {
            Place::Done => Vec::new(),
            Place::Index => vec![compact::search_for(&self.session.goal)],
            _ => page::clickables(&self.shop, &self.session).into_iter().map(|n| format!("click[{n}]")).collect(),
        })
    }

    fn allows(&self, action: &str) -> bool {
        match action::read(action) {
            _ if self.session.place() == Place::Done => false,
            Ok(Action::Search(_)) => true,
            Ok(Action::Click(name)) => self.session.can_click(&self.shop, &name),
            Err(_) => false,
        }
    }

    fn compact_legal(&self) -> Option<Vec<String>> {
        Some(compact::actions(&self.shop, &self.session).into_iter().map(|(word, _)| word).collect())
    }

    /// The page as MAGE groups by it; and, unless as released, what is chosen, which the page does not show.
    fn anchor(&self) -> Anchor {
        let mut anchor = page::quoted(&fields(&self.shop, &self.session), &self.goal.text);
        if !self.faithful {
            for (name, value) in &self.session.chosen {
                anchor.push_str(&format!("{}{name}={value}", page::SEPARATOR));
            }
        }
        Anchor(anchor)
    }

    fn render(&self) -> Option<String> {
        Some(text_ui::picture(&self.shop, &self.session, &self.goal.text))
    }
}
