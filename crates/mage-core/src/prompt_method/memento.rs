//! Memento: a bank of past episodes (cases) and a plan made from the most similar ones.
//!
//! A case holds the start of an episode, its plan, its actions and whether it was won. Before an episode the model sees
//! the most similar cases, successful and failed ones separately, and writes a plan, which every prompt of the episode
//! contains. Retrieval is by text similarity alone; nothing is trained.

use crate::{
    Completion, Embeddings, EpisodeConfig, Memory, MemoryStep, Message, RecallQuery, RequestBody, RequestKind, Result,
    memory::FinishedEpisode,
    nearest, parse,
    prompt::{MemoryBlock, PromptSet, result_text},
};
use mage_env::ParsedAction;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard};

/// Default number of cases in a planning prompt.
const DEFAULT_CASES: usize = 4;
/// Maximum characters of the last observation in a case.
const MAX_END_CHARS: usize = 600;

/// One past episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Case {
    /// The initial observation.
    start: String,
    /// The plan, if any.
    plan: Option<String>,
    /// The actions.
    actions: Vec<String>,
    /// The last observation; in games it contains the opponent's last action.
    end: String,
    /// The result as text.
    result: String,
    won: bool,
}

/// All cases, in chronological order.
#[derive(Clone, Debug, Default)]
pub(super) struct CaseBank {
    cases: Vec<Case>,
}

impl CaseBank {
    /// The cases most similar to an initial observation, most similar first; ties latest first.
    fn nearest(&self, embeddings: &dyn Embeddings, start: &str, count: usize) -> Result<Vec<&Case>> {
        let latest: Vec<&Case> = self.cases.iter().rev().collect();
        let starts: Vec<&str> = latest.iter().map(|c| c.start.as_str()).collect();
        Ok(nearest(embeddings, start, &starts, count)?.into_iter().map(|i| latest[i]).collect())
    }
}

/// The memory of the Memento method.
pub(super) struct CaseMemory {
    config: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    embeddings: Arc<dyn Embeddings>,
    bank: Arc<Mutex<CaseBank>>,
    shared: bool,
    /// The plan of the current episode.
    plan: Option<String>,
}

impl CaseMemory {
    pub(super) fn new(
        config: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
        embeddings: Arc<dyn Embeddings>,
        bank: Arc<Mutex<CaseBank>>,
        shared: bool,
    ) -> Self {
        CaseMemory { config, prompts, embeddings, bank, shared, plan: None }
    }

    fn bank(&self) -> MutexGuard<'_, CaseBank> {
        super::lock(&self.bank)
    }

    fn plan_request(&self, query: &RecallQuery<'_>) -> Result<RequestBody> {
        let start = &query.current.start.text;
        let bank = self.bank();
        let cases = bank.nearest(&*self.embeddings, start, self.config.recall_limit.unwrap_or(DEFAULT_CASES))?;
        let (good, bad) = cases.into_iter().partition(|c| c.won);
        let prompt =
            self.prompts.method_prompt("plan", query.seat, &PlanContext { start, good, bad, shared: self.shared })?;
        Ok(RequestBody {
            kind: RequestKind::Plan,
            messages: vec![Message::user(prompt)],
            allowed: None,
            max_tokens: self.config.reflect_tokens,
            trainable: false,
        })
    }
}

impl Memory for CaseMemory {
    fn recall(&mut self, query: &RecallQuery<'_>, completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let mut unusable = Vec::new();
        if query.turn == 0 {
            let Some(completion) = completions.first() else {
                return Ok(MemoryStep::Request(self.plan_request(query)?));
            };
            self.plan = match parse::last_tag(&completion.text, "plan") {
                Ok(plan) => Some(parse::truncate(plan, self.config.reflection_chars).to_owned()),
                Err(e) => {
                    unusable.push((0, e.explain("plan")));
                    None
                }
            };
        }
        let notes = match &self.plan {
            Some(plan) => self.prompts.method_prompt("planned", query.seat, &PlannedContext { plan })?,
            None => String::new(),
        };
        Ok(MemoryStep::Done(MemoryBlock { entries: Vec::new(), notes }, unusable))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, _completions: &[Completion]) -> Result<MemoryStep<()>> {
        let episode = finished.episode;
        let action_text = |action: &ParsedAction| match action {
            ParsedAction::Act(action) => action.clone(),
            ParsedAction::Invalid { .. } => "(nothing that could be done)".to_owned(),
        };
        let case = Case {
            start: episode.start.text.clone(),
            plan: self.plan.take(),
            actions: episode.turns.iter().map(|t| action_text(&t.action)).collect(),
            end: parse::truncate(&episode.last_observation().text, MAX_END_CHARS).to_owned(),
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
struct PlanContext<'a> {
    start: &'a str,
    good: Vec<&'a Case>,
    bad: Vec<&'a Case>,
    shared: bool,
}

#[derive(Serialize)]
struct PlannedContext<'a> {
    plan: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexical;

    #[test]
    fn ties_are_recalled_latest_first() {
        let case = |start: &str, result: &str| Case {
            start: start.to_owned(),
            plan: None,
            actions: vec![],
            end: String::new(),
            result: result.to_owned(),
            won: false,
        };
        let bank = CaseBank { cases: vec![case("a king", "1"), case("a jack", "2"), case("a king", "3")] };
        let near = bank.nearest(&Lexical, "a king", 2).unwrap();
        assert_eq!(near.iter().map(|c| c.result.as_str()).collect::<Vec<_>>(), ["3", "1"]);
    }
}
