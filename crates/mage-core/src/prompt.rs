//! Prompt templates and their rendering.
//!
//! Each environment has a template per request kind (play, reflect) in two forms: *full*, for a language model that
//! reasons and puts its answer between tags, and *compact*, a few dozen words of a small fixed vocabulary with one word
//! per action, for small models trained from scratch. Text that turns and group members share comes first, so that
//! engines can share its KV cache.

use crate::{
    Error, Result,
    episode::{Episode, HistoryWindow, RenderedTurn, Turn, truncate_older},
};
use mage_env::{EnvInfo, Outcome};
use minijinja::{Environment, Value, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// The form of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// Sentences, with thinking and tags.
    #[default]
    Full,
    /// Words of a fixed vocabulary.
    Compact,
}

/// The first words of every compact vocabulary: padding, begin of prompt, end of completion, play, reflect, blank,
/// unknown.
pub const CONTROL_WORDS: [&str; 7] = ["PAD", "BOS", "END", "GO", "REFLECT", "_", "?"];

/// The compact vocabulary of an environment: [`CONTROL_WORDS`], then the words of the environment.
///
/// ```
/// let kuhn = mage_env::Registry::builtin().get("kuhn").unwrap().info();
/// let words = mage_core::prompt::vocabulary(&kuhn);
/// assert!(words.len() < 32 && words.contains(&"BET".to_owned()));
/// ```
pub fn vocabulary(env_info: &EnvInfo) -> Vec<String> {
    CONTROL_WORDS.iter().map(|w| (*w).to_owned()).chain(env_info.compact_words.iter().cloned()).collect()
}

/// The templates and history windows of an environment.
#[derive(Clone, Debug)]
pub struct PromptSource {
    /// The rules, for full prompts. Both full templates begin with them (`{% include "rules" %}`), so that engines
    /// compute their KV cache once.
    pub rules: Cow<'static, str>,
    /// Full play prompt.
    pub play_full: Cow<'static, str>,
    /// Full reflection prompt.
    pub reflect_full: Cow<'static, str>,
    /// Compact play prompt.
    pub play_compact: Cow<'static, str>,
    /// Compact reflection prompt.
    pub reflect_compact: Cow<'static, str>,
    /// History windows.
    pub windows: HistoryWindows,
}

/// Compact play prompt of all environments.
const PLAY_COMPACT: &str = include_str!("../prompts/shared/play.compact.jinja");
/// Compact reflection prompt of all environments.
const REFLECT_COMPACT: &str = include_str!("../prompts/shared/reflect.compact.jinja");

impl PromptSource {
    /// Templates that show rules, memory, observation, turns and legal actions. `rules` is a template, too; `seat` is
    /// the agent's seat.
    pub fn from_rules(rules: impl Into<Cow<'static, str>>) -> Self {
        PromptSource {
            rules: rules.into(),
            play_full: Cow::Borrowed(include_str!("../prompts/shared/play.full.jinja")),
            reflect_full: Cow::Borrowed(include_str!("../prompts/shared/reflect.full.jinja")),
            play_compact: Cow::Borrowed(PLAY_COMPACT),
            reflect_compact: Cow::Borrowed(REFLECT_COMPACT),
            windows: HistoryWindows::GAMES,
        }
    }
}

/// The windows of past turns in each kind of prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryWindows {
    /// Current episode, in play prompts.
    pub play: HistoryWindow,
    /// Finished episode, in reflection prompts.
    pub reflect: HistoryWindow,
    /// Each past episode, in memories with transcripts.
    pub past: HistoryWindow,
    /// Limits of long texts.
    #[serde(default)]
    pub limits: TextLimits,
}

impl HistoryWindows {
    /// Windows of the released code for board and card games and Sokoban: the last seven turns, the last two with
    /// observations.
    pub const GAMES: HistoryWindows = HistoryWindows {
        play: HistoryWindow { turns: 7, observations: 2 },
        reflect: HistoryWindow { turns: 7, observations: 7 },
        past: HistoryWindow { turns: 7, observations: 7 },
        limits: TextLimits::NONE,
    };

    /// Window of the released code for ALFWorld: the last fifteen turns, all with observations.
    const ALFWORLD: HistoryWindows = {
        let all = HistoryWindow { turns: 15, observations: 15 };
        HistoryWindows { play: all, reflect: all, past: all, limits: TextLimits::NONE }
    };

    /// Windows of the released code for WebShop, where observations are long.
    const WEBSHOP: HistoryWindows = HistoryWindows {
        play: HistoryWindow { turns: 5, observations: 5 },
        reflect: HistoryWindow { turns: 20, observations: 20 },
        past: HistoryWindow { turns: 3, observations: 3 },
        limits: TextLimits { max_parts: Some(15), max_past_parts: Some(6), max_prompt_chars: Some(20_000) },
    };
}

/// Limits of texts in prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextLimits {
    /// Maximum parts of each observation except the newest; ` [SEP] ` separates parts.
    pub max_parts: Option<usize>,
    /// Maximum parts in past episodes, in memories with transcripts.
    pub max_past_parts: Option<usize>,
    /// Maximum characters of a full prompt. A longer prompt is replaced by one with reflections and the last turn only.
    pub max_prompt_chars: Option<usize>,
}

impl TextLimits {
    /// No limits.
    pub const NONE: TextLimits = TextLimits { max_parts: None, max_past_parts: None, max_prompt_chars: None };
}

/// The prompt templates of all environments.
///
/// ```
/// use mage_core::prompt::PromptLibrary;
/// let library = PromptLibrary::builtin();
/// assert!(library.get("kuhn").is_ok());
/// assert!(library.get("chess").unwrap_err().to_string().contains("chess"));
/// ```
#[derive(Clone)]
pub struct PromptLibrary {
    sources: BTreeMap<String, PromptSource>,
}

impl PromptLibrary {
    /// The templates of the built-in environments.
    pub fn builtin() -> Self {
        let mut library = PromptLibrary { sources: BTreeMap::new() };
        library.add("alfworld", builtin_source!("alfworld", HistoryWindows::ALFWORLD));
        library.add("kuhn", builtin_source!("kuhn", HistoryWindows::GAMES));
        library.add("tictactoe", builtin_source!("tictactoe", HistoryWindows::GAMES));
        library.add("sokoban", builtin_source!("sokoban", HistoryWindows::GAMES));
        library.add("webshop", builtin_source!("webshop", HistoryWindows::WEBSHOP));
        library
    }

    /// Adds or replaces the templates of an environment.
    pub fn add(&mut self, env: &str, source: PromptSource) {
        self.sources.insert(env.to_owned(), source);
    }

    /// Adds the default templates of an environment with these rules, unless it has templates already.
    pub fn add_default(&mut self, env: &str, rules: &str) {
        self.sources.entry(env.to_owned()).or_insert_with(|| PromptSource::from_rules(rules.to_owned()));
    }

    /// The compiled templates of an environment.
    pub fn get(&self, env: &str) -> Result<Arc<PromptSet>> {
        let source = self.sources.get(env).ok_or_else(|| Error::NoPrompts { env: env.to_owned() })?;
        PromptSet::compile(env, source).map(Arc::new)
    }
}

/// The templates of a built-in environment, from its folder under `prompts/`.
macro_rules! builtin_source {
    ($env:literal, $windows:expr) => {
        PromptSource {
            rules: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/rules.jinja"))),
            play_full: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/play.full.jinja"))),
            reflect_full: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/reflect.full.jinja"))),
            play_compact: Cow::Borrowed(PLAY_COMPACT),
            reflect_compact: Cow::Borrowed(REFLECT_COMPACT),
            windows: $windows,
        }
    };
}
use builtin_source;

/// A past episode, as recalled from memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecalledEpisode {
    /// Its index, from 1.
    pub number: u32,
    /// Its result as text.
    pub result: String,
    /// The reflection on it.
    pub reflection: Option<String>,
    /// Its initial observation, in memories with transcripts.
    pub start: Option<String>,
    /// Its turns, in memories with transcripts.
    pub history: Option<Vec<RenderedTurn>>,
}

/// The memory block of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryBlock {
    /// Past episodes.
    pub entries: Vec<RecalledEpisode>,
    /// Additional text, inserted verbatim.
    pub notes: String,
}

impl MemoryBlock {
    /// A copy without the transcripts of past episodes.
    fn without_histories(&self) -> MemoryBlock {
        let entries =
            self.entries.iter().cloned().map(|e| RecalledEpisode { start: None, history: None, ..e }).collect();
        MemoryBlock { entries, notes: self.notes.clone() }
    }
}

/// The input of a play prompt.
pub(crate) struct PlayView<'a> {
    /// The agent's seat.
    pub(crate) seat: u8,
    /// The memory block.
    pub(crate) memory: &'a MemoryBlock,
    /// The episode, from 1; 0 if the prompt must not mention earlier episodes.
    pub(crate) number: u32,
    /// The episode so far.
    pub(crate) episode: &'a Episode,
    /// The legal actions, if they can be enumerated.
    pub(crate) legal: Option<&'a [String]>,
    /// Remaining turns, including this one.
    pub(crate) turns_left: u32,
}

/// The compiled templates of an environment.
#[derive(Debug)]
pub struct PromptSet {
    templates: Environment<'static>,
    windows: HistoryWindows,
    /// Whether the compact templates use no variables besides [`CompactContext`], so that no others are computed.
    compact_context_suffices: bool,
}

impl PromptSet {
    fn compile(env: &str, source: &PromptSource) -> Result<Self> {
        let mut templates = Environment::new();
        // Block tags are on lines of their own and leave no white space.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        templates.set_syntax(syntax.map_err(|e| Error::template(env, "syntax", &e))?);
        templates.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        let shared = [
            ("memory", include_str!("../prompts/shared/memory.jinja")),
            ("turns", include_str!("../prompts/shared/turns.jinja")),
            ("answer", include_str!("../prompts/shared/answer.jinja")),
            ("remark", include_str!("../prompts/shared/remark.jinja")),
            ("cot", include_str!("../prompts/methods/cot.jinja")),
            ("episode", include_str!("../prompts/methods/episode.jinja")),
            ("note", include_str!("../prompts/methods/note.jinja")),
            ("evolve", include_str!("../prompts/methods/evolve.jinja")),
            ("notes", include_str!("../prompts/methods/notes.jinja")),
            ("plan", include_str!("../prompts/methods/plan.jinja")),
            ("planned", include_str!("../prompts/methods/planned.jinja")),
        ];
        let own = [
            ("rules", &source.rules),
            ("play.full", &source.play_full),
            ("reflect.full", &source.reflect_full),
            ("play.compact", &source.play_compact),
            ("reflect.compact", &source.reflect_compact),
        ];
        let shared = shared.map(|(name, text)| (name, Cow::Borrowed(text)));
        for (name, text) in shared.into_iter().chain(own.map(|(name, text)| (name, text.clone()))) {
            templates.add_template_owned(name, text).map_err(|e| Error::template(env, name, &e))?;
        }
        let compact_context_suffices =
            ["play.compact", "reflect.compact"].into_iter().all(|name| uses_compact_context_only(&templates, name));
        Ok(PromptSet { templates, windows: source.windows, compact_context_suffices })
    }

    /// The rules for a person in `seat`, who sees [`Env::render`](mage_env::Env::render) where the environment has it.
    pub fn rules_for_humans(&self, seat: u8) -> Result<String> {
        self.render("rules", &RulesContext { seat, rendered: true })
    }

    /// The turns of a past episode, rendered for memory.
    pub(crate) fn past_turns(&self, turns: &[Turn]) -> Vec<RenderedTurn> {
        let mut rendered = self.windows.past.render(turns);
        truncate_older(&mut rendered, self.windows.limits.max_past_parts);
        rendered
    }

    fn render_turns(&self, window: HistoryWindow, episode: &Episode) -> Vec<RenderedTurn> {
        let mut turns = window.render(&episode.turns);
        truncate_older(&mut turns, self.windows.limits.max_parts);
        turns
    }

    fn exceeds_limit(&self, prompt_form: PromptForm, prompt: &str) -> bool {
        prompt_form == PromptForm::Full
            && self.windows.limits.max_prompt_chars.is_some_and(|max| prompt.chars().nth(max).is_some())
    }

    /// The play prompt. `slots` are the past episodes of a compact prompt.
    pub(crate) fn play(&self, prompt_form: PromptForm, view: &PlayView<'_>, slots: &[String]) -> Result<String> {
        let prompt = self.play_with(prompt_form, view, slots, view.memory, self.windows.play)?;
        if !self.exceeds_limit(prompt_form, &prompt) {
            return Ok(prompt);
        }
        self.play_with(prompt_form, view, slots, &view.memory.without_histories(), LAST_TURN)
    }

    fn play_with(
        &self,
        prompt_form: PromptForm,
        view: &PlayView<'_>,
        slots: &[String],
        memory: &MemoryBlock,
        window: HistoryWindow,
    ) -> Result<String> {
        if prompt_form == PromptForm::Compact && self.compact_context_suffices {
            return self
                .render("play.compact", &CompactContext { slots, compact: &view.episode.last_observation().compact });
        }
        let turns = self.render_turns(window, view.episode);
        let context = PlayContext {
            rules: RulesContext { seat: view.seat, rendered: false },
            start: &view.episode.start.text,
            memory,
            number: view.number,
            left_out: view.episode.turns.len() - turns.len(),
            turns,
            now: &view.episode.last_observation().text,
            compact: &view.episode.last_observation().compact,
            legal: view.legal,
            turns_left: view.turns_left,
            slots,
        };
        self.render(if prompt_form == PromptForm::Full { "play.full" } else { "play.compact" }, &context)
    }

    /// The reflection prompt for a finished episode.
    pub(crate) fn reflect(&self, prompt_form: PromptForm, seat: u8, episode: &Episode) -> Result<String> {
        let prompt = self.reflect_with(prompt_form, seat, episode, self.windows.reflect)?;
        if self.exceeds_limit(prompt_form, &prompt) {
            self.reflect_with(prompt_form, seat, episode, LAST_TURN)
        } else {
            Ok(prompt)
        }
    }

    fn reflect_with(
        &self,
        prompt_form: PromptForm,
        seat: u8,
        episode: &Episode,
        window: HistoryWindow,
    ) -> Result<String> {
        if prompt_form == PromptForm::Compact && self.compact_context_suffices {
            return self.render(
                "reflect.compact",
                &CompactContext { slots: &[], compact: &episode.last_observation().compact },
            );
        }
        let turns = self.render_turns(window, episode);
        let context = ReflectContext {
            rules: RulesContext { seat, rendered: false },
            start: &episode.start.text,
            left_out: episode.turns.len() - turns.len(),
            turns,
            result: result_text(episode),
            compact: &episode.last_observation().compact,
        };
        self.render(if prompt_form == PromptForm::Full { "reflect.full" } else { "reflect.compact" }, &context)
    }

    /// The transcript of a finished episode, for memories.
    pub(crate) fn episode_text(&self, episode: &Episode) -> Result<String> {
        let turns = self.past_turns(&episode.turns);
        let context = EpisodeContext {
            start: &episode.start.text,
            left_out: episode.turns.len() - turns.len(),
            turns,
            result: result_text(episode),
        };
        Ok(self.render("episode", &context)?.trim_end().to_owned())
    }

    /// Renders a template of a prompt method, with the rules for `seat`.
    pub(crate) fn method_prompt(&self, name: &str, seat: u8, context: &impl Serialize) -> Result<String> {
        let rules = RulesContext { seat, rendered: false };
        Ok(self.render(name, &MethodContext { rules, context })?.trim_end().to_owned())
    }

    fn render(&self, name: &str, context: &impl Serialize) -> Result<String> {
        let template = self.templates.get_template(name).map_err(|e| Error::template("", name, &e))?;
        template.render(Value::from(Serde(context))).map_err(|e| Error::template("", name, &e))
    }
}

/// Whether a template uses only the variables of [`CompactContext`]. Templates with includes are not analysed.
fn uses_compact_context_only(templates: &Environment<'_>, name: &str) -> bool {
    templates.get_template(name).is_ok_and(|template| {
        let has_includes = ["include", "import", "extends"].iter().any(|word| template.source().contains(word));
        !has_includes && template.undeclared_variables(false).iter().all(|n| ["slots", "compact"].contains(&n.as_str()))
    })
}

/// The window of a prompt that exceeds the length limit.
const LAST_TURN: HistoryWindow = HistoryWindow { turns: 1, observations: 1 };

/// Template variables of the rules.
#[derive(Serialize)]
struct RulesContext {
    seat: u8,
    /// Whether the reader sees rendered images instead of text observations.
    rendered: bool,
}

/// Template variables of most compact prompts. An update renders thousands of them.
#[derive(Serialize)]
struct CompactContext<'a> {
    slots: &'a [String],
    compact: &'a str,
}

/// Template variables of play prompts.
#[derive(Serialize)]
struct PlayContext<'a> {
    #[serde(flatten)]
    rules: RulesContext,
    start: &'a str,
    memory: &'a MemoryBlock,
    number: u32,
    left_out: usize,
    turns: Vec<RenderedTurn>,
    now: &'a str,
    compact: &'a str,
    legal: Option<&'a [String]>,
    turns_left: u32,
    slots: &'a [String],
}

/// Template variables of reflection prompts.
#[derive(Serialize)]
struct ReflectContext<'a> {
    #[serde(flatten)]
    rules: RulesContext,
    start: &'a str,
    left_out: usize,
    turns: Vec<RenderedTurn>,
    result: String,
    compact: &'a str,
}

/// Template variables of an episode transcript.
#[derive(Serialize)]
struct EpisodeContext<'a> {
    start: &'a str,
    left_out: usize,
    turns: Vec<RenderedTurn>,
    result: String,
}

/// Template variables of prompt methods.
#[derive(Serialize)]
struct MethodContext<'a, C: Serialize> {
    #[serde(flatten)]
    rules: RulesContext,
    #[serde(flatten)]
    context: &'a C,
}

/// The result of an episode as text.
pub(crate) fn result_text(episode: &Episode) -> String {
    match episode.outcome() {
        Some(Outcome::Won) => "you won",
        Some(Outcome::Lost) => "you lost",
        Some(Outcome::Draw) => "nobody won",
        None => "you ran out of turns",
    }
    .to_owned()
}
