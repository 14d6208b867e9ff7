//! Rock-paper-scissors against opponents with fixed throw probabilities.
//!
//! The game is sequential: the opponent moves first and its throw is hidden until the agent has moved.

use mage_core::prompt::{HistoryWindows, PromptSource};
use mage_env::{
    ActionId, ActionList, ActionProbs, CurrentPlayer, Deal, Env, EnvId, EnvInfo, EnvSpec, Error, Game, GameEnv,
    MAX_PLAYERS, Observation, Opponent, OpponentKinds, Population, PopulationMember, Result, Rng, Task, TextGame,
};
use smallvec::smallvec;
use std::sync::Arc;

/// The throws; each beats the one before it, and the first beats the last.
const THROWS: [&str; 3] = ["ROCK", "PAPER", "SCISSORS"];

/// The rules of rock-paper-scissors.
pub struct Rps;

/// Throws so far: `hidden` of seat 1 (the opponent), then `open` of seat 0 (the agent).
#[derive(Clone, Copy, Default)]
pub struct Throws {
    hidden: Option<u16>,
    open: Option<u16>,
}

impl Game for Rps {
    type State = Throws;

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> Throws {
        Throws::default()
    }

    fn current_player(&self, s: &Throws) -> CurrentPlayer {
        match (s.hidden, s.open) {
            (None, _) => CurrentPlayer::Player(1),
            (_, None) => CurrentPlayer::Player(0),
            _ => CurrentPlayer::Terminal,
        }
    }

    fn legal(&self, s: &Throws) -> ActionList {
        if self.current_player(s) == CurrentPlayer::Terminal { smallvec![] } else { (0..3).map(ActionId).collect() }
    }

    fn apply(&self, s: &mut Throws, a: ActionId) {
        if s.hidden.is_none() { s.hidden = Some(a.0) } else { s.open = Some(a.0) }
    }

    fn returns(&self, s: &Throws) -> [f32; MAX_PLAYERS] {
        let agent = match (s.hidden, s.open) {
            (Some(h), Some(o)) if o == (h + 1) % 3 => 1.0,
            (Some(h), Some(o)) if h == (o + 1) % 3 => -1.0,
            _ => 0.0,
        };
        [agent, -agent, 0.0, 0.0]
    }

    fn observe(&self, s: &Throws, player: u8) -> String {
        match (s.hidden, s.open) {
            (Some(h), Some(o)) => format!("{} against {}", THROWS[o as usize], THROWS[h as usize]),
            (Some(h), None) if player == 1 => THROWS[h as usize].to_owned(),
            _ => "open".to_owned(),
        }
    }
}

impl TextGame for Rps {
    fn describe(&self, s: &Throws, player: u8) -> Observation {
        match (s.hidden, s.open) {
            (Some(h), Some(o)) => {
                let (own, other) = if player == 0 { (o, h) } else { (h, o) };
                let (own, other) = (THROWS[own as usize], THROWS[other as usize]);
                let result = match self.returns(s)[usize::from(player)] {
                    r if r > 0.0 => "You win.",
                    r if r < 0.0 => "You lose.",
                    _ => "Nobody wins.",
                };
                Observation {
                    text: format!("You threw {own}, the opponent threw {other}. {result}"),
                    compact: format!("{own} {other}"),
                }
            }
            _ => Observation { text: "Both fists are up.".to_owned(), compact: "_ _".to_owned() },
        }
    }

    fn action_name(&self, a: ActionId) -> String {
        THROWS[usize::from(a.0)].to_owned()
    }

    fn read_action(&self, _s: &Throws, text: &str) -> std::result::Result<ActionId, String> {
        let found = THROWS.iter().position(|t| t.eq_ignore_ascii_case(text.trim()));
        found.map(|i| ActionId(i as u16)).ok_or_else(|| "throw ROCK, PAPER or SCISSORS".to_owned())
    }
}

/// An opponent with fixed throw probabilities.
struct FixedThrows([f64; 3]);

impl Opponent<Rps> for FixedThrows {
    fn policy(&self, _game: &Rps, _s: &Throws, _seat: u8) -> Option<ActionProbs> {
        Some((0..3).map(|i| (ActionId(i), self.0[usize::from(i)])).collect())
    }
}

/// The environment specification of rock-paper-scissors.
pub struct RpsSpec {
    opponents: OpponentKinds<Rps>,
}

impl Default for RpsSpec {
    fn default() -> Self {
        let mut opponents = OpponentKinds::default();
        opponents.add_plain("rocky", "mostly throws rock", FixedThrows([0.8, 0.1, 0.1]));
        opponents.add_plain("wrapper", "mostly throws paper", FixedThrows([0.1, 0.8, 0.1]));
        opponents.add_plain("cutter", "mostly throws scissors", FixedThrows([0.1, 0.1, 0.8]));
        RpsSpec { opponents }
    }
}

impl EnvSpec for RpsSpec {
    fn id(&self) -> EnvId {
        EnvId::new("rps")
    }

    fn info(&self) -> EnvInfo {
        EnvInfo {
            title: "Rock-paper-scissors".to_owned(),
            summary: "against an opponent with fixed throw probabilities".to_owned(),
            unit: "points per round".to_owned(),
            seats: 1,
            max_turns: 3,
            options: vec![],
            opponents: self.opponents.docs(),
            compact_words: THROWS.map(str::to_owned).to_vec(),
            max_compact_action_words: 1,
            compact_reflection_words: 2,
        }
    }

    fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        let spec = task.opponent.as_ref().ok_or_else(|| Error::invalid("task of rps", "an opponent is needed"))?;
        let opponent = self.opponents.build(spec)?;
        Ok(Box::new(GameEnv::new(Arc::new(Rps), opponent, 0, Deal::Fresh, task.seed)))
    }

    fn check(&self, population: &Population) -> Result<()> {
        population.opponents.iter().try_for_each(|m| self.opponents.build(&m.spec).map(drop))
    }

    fn default_population(&self) -> Population {
        let opponents = ["rocky", "wrapper", "cutter"].map(|kind| PopulationMember::in_domain(kind, 1.0)).to_vec();
        Population { opponents, ..Population::without_opponents(self.id()) }
    }
}

/// The prompt templates.
pub fn prompts() -> PromptSource {
    PromptSource {
        rules: "You play rock-paper-scissors. Rock beats scissors, scissors beat paper, paper beats rock.\n".into(),
        play_full: include_str!("../prompts/play.jinja").into(),
        reflect_full: include_str!("../prompts/reflect.jinja").into(),
        play_compact: "BOS{% for slot in slots %} {{ slot }}{% endfor %} {{ compact }} GO".into(),
        reflect_compact: "BOS REFLECT {{ compact }} GO".into(),
        windows: HistoryWindows::GAMES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_core::{Completion, EpisodeConfig, MetaEpisode, Next, RequestKind, prompt::PromptLibrary};
    use mage_env::{Registry, Seed};

    #[test]
    fn meta_episode_of_the_added_game_uses_memory() {
        let mut registry = Registry::builtin();
        registry.register(RpsSpec::default());
        let mut library = PromptLibrary::builtin();
        library.add("rps", prompts());

        let population = registry.get("rps").unwrap().default_population();
        let mut won = 0;
        for i in 0..100 {
            let task = population.sample_task("train", 1, Seed::new(i)).unwrap();
            let env = registry.build(&task).unwrap();
            let config = Arc::new(EpisodeConfig { episodes: 2, ..EpisodeConfig::default() });
            let mut meta = MetaEpisode::new(task, env, library.get("rps").unwrap(), config, Seed::new(i)).unwrap();
            let mut seen = String::new();
            let trajectory = loop {
                match meta.advance().unwrap() {
                    Next::Done(trajectory) => break trajectory,
                    Next::Request(request) => {
                        let prompt = &request.body.messages[0].content;
                        let completion = match request.body.kind {
                            // Beat the throw that the reflection reports.
                            RequestKind::Play => {
                                let last = THROWS.iter().position(|t| prompt.contains(&format!("threw {t} last")));
                                format!("<action>{}</action>", THROWS[last.map_or(0, |i| (i + 1) % 3)])
                            }
                            _ => {
                                seen = prompt.split("opponent threw ").last().unwrap().to_owned();
                                format!("<remark>threw {} last</remark>", seen.split('.').next().unwrap())
                            }
                        };
                        meta.submit(request.id, Ok(Completion::from_text(completion))).unwrap();
                    }
                }
            };
            assert!(!seen.is_empty());
            won += u32::from(trajectory.episodes[1].won());
        }
        assert!(won > 50, "memory should win more often than chance: {won} of 100");
    }
}
