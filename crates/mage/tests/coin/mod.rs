//! An environment in which the agent's action is the outcome, and agents with a known success probability.

use mage_core::prompt::{HistoryWindows, PromptLibrary, PromptSet, PromptSource};
use mage_engine::{BoxFuture, ChatCompletion, ChatModel, ChatRequest, ChatUsage, FinishReason, Result as EngineResult};
use mage_env::{
    Anchor, End, Env, EnvId, EnvInfo, EnvSpec, Observation, Outcome, ParsedAction, Population, Result, Seed, Step, Task,
};
use mage_train::policy::{DecodingConfig, NamedPolicy};
use rand::RngExt;
use std::sync::Arc;

const ID: EnvId = EnvId::new("coin");

struct Coin;
pub(crate) struct CoinSpec;

fn observation(text: &str) -> Observation {
    Observation { text: text.to_owned(), compact: text.to_owned() }
}

impl Env for Coin {
    fn reset(&mut self, _episode: u32) -> Observation {
        observation("A coin lies before you.")
    }
    fn parse(&self, text: &str) -> ParsedAction {
        match text {
            "win" | "lose" => ParsedAction::Act(text.to_owned()),
            _ => ParsedAction::invalid("say win or lose"),
        }
    }
    fn step(&mut self, action: &ParsedAction) -> Step {
        let end = |outcome, score| Step {
            observation: observation("It is over."),
            reward: score,
            valid: true,
            end: Some(End::Terminated { outcome, score }),
        };
        match action {
            ParsedAction::Act(a) if a == "win" => end(Outcome::Won, 1.0),
            ParsedAction::Act(_) => end(Outcome::Lost, -1.0),
            ParsedAction::Invalid { .. } => {
                Step { observation: observation("?"), reward: 0.0, valid: false, end: None }
            }
        }
    }
    fn legal(&self) -> Option<Vec<String>> {
        Some(vec!["win".to_owned(), "lose".to_owned()])
    }
    fn anchor(&self) -> Anchor {
        Anchor("coin".to_owned())
    }
}

impl EnvSpec for CoinSpec {
    fn id(&self) -> EnvId {
        ID
    }
    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "Coin".to_owned(),
            summary: "say what happens".to_owned(),
            unit: "wins minus losses".to_owned(),
            seats: 1,
            max_turns: 1,
            options: vec![],
            opponents: vec![],
            compact_words: vec!["win".to_owned(), "lose".to_owned()],
            max_compact_action_words: 1,
            compact_reflection_words: 1,
        }
    }
    fn build(&self, _task: &Task) -> Result<Box<dyn Env>> {
        Ok(Box::new(Coin))
    }
    fn check(&self, _population: &Population) -> Result<()> {
        Ok(())
    }
    fn default_population(&self) -> Population {
        Population::without_opponents(ID)
    }
}

pub(crate) fn prompts() -> Arc<PromptSet> {
    let mut library = PromptLibrary::builtin();
    library.add(
        "coin",
        PromptSource {
            rules: "Say what happens.".into(),
            play_full: "{% include \"rules\" %}\n{% include \"memory\" %}\n{{ start }}\n{% include \"answer\" %}"
                .into(),
            reflect_full: "{% include \"rules\" %}\n{{ result }}\n{% include \"remark\" %}".into(),
            play_compact: "BOS GO".into(),
            reflect_compact: "BOS REFLECT GO".into(),
            windows: HistoryWindows::GAMES,
        },
    );
    library.get("coin").unwrap()
}

/// Wins with probability `p`, gives an invalid response with probability `nonsense`, loses otherwise.
struct ProbabilisticPolicy {
    p: f64,
    nonsense: f64,
}

impl ChatModel for ProbabilisticPolicy {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, EngineResult<ChatCompletion>> {
        let draw: f64 = Seed::new(request.params.seed).child("coin").rng().random();
        let text = match draw {
            x if x < self.p => "<action>win</action>",
            x if x < self.p + self.nonsense => "no idea",
            _ => "<action>lose</action>",
        };
        let usage = ChatUsage { prompt_tokens: 10, completion_tokens: 2 };
        let completion = ChatCompletion { text: text.to_owned(), finish: FinishReason::Stop, usage };
        Box::pin(async move { Ok(completion) })
    }
}

/// A policy that wins each episode with probability `p`.
pub(crate) fn policy(p: f64, nonsense: f64) -> NamedPolicy {
    let decoding =
        DecodingConfig { params: mage_engine::SamplingParams::default(), thinking: mage_engine::Thinking::Off };
    let name = format!("wins {p}");
    NamedPolicy::chat(&name, &name, Arc::new(ProbabilisticPolicy { p, nonsense }), decoding, 64)
}
