//! What was done in cases like this, and did it work? (Memento)
//!
//! Every episode becomes a case: how it began, what was planned and done, whether it was won. Before an episode the cases
//! nearest to its beginning are laid before the model, the good and the bad apart, and it makes a plan, which stands in every
//! prompt of the episode. Retrieval is by similarity alone; nothing is trained.

use crate::{
    Completion, Embeddings, EpisodeConfig, Memory, MemoryStep, Message, RecallQuery, RequestBody, RequestKind, Result,
    memory::FinishedEpisode,
    nearest, parse,
    prompt::{MemoryBlock, PromptSet, result_text},
};
use mage_env::ParsedAction;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many cases a plan is made from unless the settings say otherwise.
const CASES: usize = 4;
/// How many characters of what was seen last are kept.
const END: usize = 600;

/// One episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Case {
    /// How it began.
    start: String,
    /// What was planned, if anything.
    plan: Option<String>,
    /// What was done.
    actions: Vec<String>,
    /// What was seen last: in games, what the opponent did.
    end: String,
    /// How it went, in words.
    result: String,
    won: bool,
}

/// All cases, in the order they happened.
#[derive(Debug, Default)]
pub(super) struct CaseBank {
    cases: Vec<Case>,
}

impl CaseBank {
    /// The cases nearest to a beginning, nearest first; of equally near ones the latest.
    fn near(&self, embeddings: &dyn Embeddings, start: &str, count: usize) -> Result<Vec<&Case>> {
        let latest: Vec<&Case> = self.cases.iter().rev().collect();
        let starts: Vec<&str> = latest.iter().map(|c| c.start.as_str()).collect();
        Ok(nearest(embeddings, start, &starts, count)?.into_iter().map(|i| latest[i]).collect())
    }
}

/// A memory of cases.
pub(super) struct CaseMemory {
    settings: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    embeddings: Arc<dyn Embeddings>,
    bank: Arc<Mutex<CaseBank>>,
    shared: bool,
    /// The present episode's plan.
    plan: Option<String>,
}

impl CaseMemory {
    pub(super) fn new(
        settings: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
        embeddings: Arc<dyn Embeddings>,
        bank: Arc<Mutex<CaseBank>>,
        shared: bool,
    ) -> Self {
        CaseMemory { settings, prompts, embeddings, bank, shared, plan: None }
    }

    fn bank(&self) -> MutexGuard<'_, CaseBank> {
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, query: &RecallQuery<'_>) -> Result<RequestBody> {
        let start = &query.current.start.text;
        let bank = self.bank();
        let near = bank.near(&*self.embeddings, start, self.settings.recall_limit.unwrap_or(CASES))?;
        let (good, bad) = near.into_iter().partition(|c| c.won);
        let prompt = self.prompts.of_method("plan", query.seat, &Planning { start, good, bad, shared: self.shared })?;
        Ok(RequestBody {
            kind: RequestKind::Plan,
            messages: vec![Message::user(prompt)],
            allowed: None,
            max_tokens: self.settings.reflect_tokens,
            trainable: false,
        })
    }
}

impl Memory for CaseMemory {
    fn recall(&mut self, query: &RecallQuery<'_>, answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let mut unusable = Vec::new();
        if query.turn == 0 {
            let Some(answer) = answers.first() else { return Ok(MemoryStep::Request(self.ask(query)?)) };
            self.plan = match parse::last_tag(&answer.text, "plan") {
                Ok(plan) => Some(parse::truncate(plan, self.settings.reflection_chars).to_owned()),
                Err(e) => {
                    unusable.push((0, e.explain("plan")));
                    None
                }
            };
        }
        let notes = match &self.plan {
            Some(plan) => self.prompts.of_method("planned", query.seat, &Planned { plan })?,
            None => String::new(),
        };
        Ok(MemoryStep::Done(MemoryBlock { entries: Vec::new(), notes }, unusable))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, _answers: &[Completion]) -> Result<MemoryStep<()>> {
        let episode = finished.episode;
        let done = |action: &ParsedAction| match action {
            ParsedAction::Act(action) => action.clone(),
            ParsedAction::Invalid { .. } => "(nothing that could be done)".to_owned(),
        };
        let case = Case {
            start: episode.start.text.clone(),
            plan: self.plan.take(),
            actions: episode.turns.iter().map(|t| done(&t.action)).collect(),
            end: parse::truncate(&episode.last_observation().text, END).to_owned(),
            result: result_text(episode),
            won: episode.won(),
        };
        self.bank().cases.push(case);
        Ok(MemoryStep::done(()))
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn contents(&self) -> serde_json::Value {
        serde_json::to_value(&self.bank().cases).expect("cases are plain data")
    }
}

#[derive(Serialize)]
struct Planning<'a> {
    start: &'a str,
    good: Vec<&'a Case>,
    bad: Vec<&'a Case>,
    shared: bool,
}

#[derive(Serialize)]
struct Planned<'a> {
    plan: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexical;

    #[test]
    fn of_equally_near_cases_the_latest_come_first() {
        let case = |start: &str, result: &str| Case {
            start: start.to_owned(),
            plan: None,
            actions: vec![],
            end: String::new(),
            result: result.to_owned(),
            won: false,
        };
        let bank = CaseBank { cases: vec![case("a king", "1"), case("a jack", "2"), case("a king", "3")] };
        let near = bank.near(&Lexical, "a king", 2).unwrap();
        assert_eq!(near.iter().map(|c| c.result.as_str()).collect::<Vec<_>>(), ["3", "1"]);
    }
}
