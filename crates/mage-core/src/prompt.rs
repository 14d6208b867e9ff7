//! What does the agent see?
//!
//! One template for each environment and phase, in two sizes: *full* for a language model that thinks and puts its
//! answer between tags, and *compact*, a few dozen words of a small fixed vocabulary with one word for an action, for
//! small models trained from scratch. What turns and members have in common comes first, so that engines can share it.

use crate::{
    Error, Result,
    episode::{Episode, HistoryWindow, RenderedTurn, Turn, truncate_older},
};
use mage_env::{EnvInfo, Outcome};
use minijinja::{Environment, Value, syntax::SyntaxConfig, value::Serde};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// Which form of prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// Sentences, thinking and tags.
    #[default]
    Full,
    /// Words of a fixed vocabulary.
    Compact,
}

/// Words every compact vocabulary begins with: padding, begin, end of an answer, "answer now", "look back", blank, unknown.
pub const CONTROL_WORDS: [&str; 7] = ["PAD", "BOS", "END", "GO", "BACK", "_", "?"];

/// The compact vocabulary of an environment: [`CONTROL_WORDS`], then its own words.
///
/// ```
/// let kuhn = mage_env::Registry::builtin().get("kuhn").unwrap().info();
/// let words = mage_core::prompt::vocabulary(&kuhn);
/// assert!(words.len() < 32 && words.contains(&"BET".to_owned()));
/// ```
pub fn vocabulary(env_info: &EnvInfo) -> Vec<String> {
    CONTROL_WORDS.iter().map(|w| (*w).to_owned()).chain(env_info.compact_words.iter().cloned()).collect()
}

/// Template texts and windows of one environment.
#[derive(Clone, Debug)]
pub struct PromptSource {
    /// The rules, in sentences: what the two full templates begin with (`{% include "rules" %}`), so that engines
    /// compute it once.
    pub rules: Cow<'static, str>,
    /// Asks for an action, in sentences.
    pub play_full: Cow<'static, str>,
    /// Asks for a reflection, in sentences.
    pub reflect_full: Cow<'static, str>,
    /// Asks for an action, in compact words.
    pub play_compact: Cow<'static, str>,
    /// Asks for a reflection, in compact words.
    pub reflect_compact: Cow<'static, str>,
    /// How much of an episode is shown.
    pub windows: HistoryWindows,
}

/// How much of an episode is shown where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryWindows {
    /// Of the current episode, when playing.
    pub play: HistoryWindow,
    /// Of the finished episode, when reflecting.
    pub reflect: HistoryWindow,
    /// Of each past episode, when memory holds histories.
    pub past: HistoryWindow,
    /// What is left of long texts.
    #[serde(default)]
    pub cut: TextLimits,
}

impl HistoryWindows {
    /// The released code's windows for the board and card games and for Sokoban: the last seven turns, the last two with what was seen.
    pub const GAMES: HistoryWindows = HistoryWindows {
        play: HistoryWindow { turns: 7, observations: 2 },
        reflect: HistoryWindow { turns: 7, observations: 7 },
        past: HistoryWindow { turns: 7, observations: 7 },
        cut: TextLimits::NOTHING,
    };

    /// The released code's window for ALFWorld: the last fifteen turns, all with what was seen.
    pub const ALFWORLD: HistoryWindows = {
        let all = HistoryWindow { turns: 15, observations: 15 };
        HistoryWindows { play: all, reflect: all, past: all, cut: TextLimits::NOTHING }
    };

    /// The released code's windows for WebShop, whose pages are long.
    pub const WEBSHOP: HistoryWindows = HistoryWindows {
        play: HistoryWindow { turns: 5, observations: 5 },
        reflect: HistoryWindow { turns: 20, observations: 20 },
        past: HistoryWindow { turns: 3, observations: 3 },
        cut: TextLimits { parts: Some(15), past_parts: Some(6), prompt_chars: Some(20_000) },
    };
}

/// What is left of texts that are too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextLimits {
    /// So many parts of every observation but the newest; parts are what ` [SEP] ` separates.
    pub parts: Option<usize>,
    /// The same for past episodes, in memories that hold histories.
    pub past_parts: Option<usize>,
    /// A full prompt of more characters is made again with reflections alone as memory and the last turn alone.
    pub prompt_chars: Option<usize>,
}

impl TextLimits {
    /// Everything.
    pub const NOTHING: TextLimits = TextLimits { parts: None, past_parts: None, prompt_chars: None };
}

/// All templates, by environment.
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

    /// Adds the templates of an environment, or replaces them.
    pub fn add(&mut self, env: &str, source: PromptSource) {
        self.sources.insert(env.to_owned(), source);
    }

    /// The templates of one environment, compiled.
    pub fn get(&self, env: &str) -> Result<Arc<PromptSet>> {
        let source = self.sources.get(env).ok_or_else(|| Error::NoPrompts { env: env.to_owned() })?;
        PromptSet::compile(env, source).map(Arc::new)
    }
}

/// The texts of a built-in environment, from its folder under `prompts/`.
macro_rules! builtin_source {
    ($env:literal, $windows:expr) => {
        PromptSource {
            rules: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/rules.jinja"))),
            play_full: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/play.full.jinja"))),
            reflect_full: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/reflect.full.jinja"))),
            play_compact: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/play.compact.jinja"))),
            reflect_compact: Cow::Borrowed(include_str!(concat!("../prompts/", $env, "/reflect.compact.jinja"))),
            windows: $windows,
        }
    };
}
use builtin_source;

/// One past episode as memory gives it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecalledEpisode {
    /// Its number, from 1.
    pub number: u32,
    /// How it went, in words.
    pub result: String,
    /// What was written about it.
    pub reflection: Option<String>,
    /// What was seen first, in memories that hold histories.
    pub start: Option<String>,
    /// What happened, in memories that hold histories.
    pub history: Option<Vec<RenderedTurn>>,
}

/// What memory puts into a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryBlock {
    /// Past episodes.
    pub entries: Vec<RecalledEpisode>,
    /// Anything else worth reading, verbatim.
    pub notes: String,
}

impl MemoryBlock {
    /// The same without what happened in past episodes.
    fn without_histories(&self) -> MemoryBlock {
        let entries =
            self.entries.iter().cloned().map(|e| RecalledEpisode { start: None, history: None, ..e }).collect();
        MemoryBlock { entries, notes: self.notes.clone() }
    }
}

/// What a play prompt is made from.
pub struct PlayView<'a> {
    /// The agent's seat.
    pub seat: u8,
    /// What memory says.
    pub memory: &'a MemoryBlock,
    /// The episode, from 1; 0 when the agent must not know that there were others.
    pub number: u32,
    /// The episode so far.
    pub episode: &'a Episode,
    /// The legal actions, where they can be listed.
    pub legal: Option<&'a [String]>,
    /// How many turns are left, this one included.
    pub turns_left: u32,
}

/// The compiled templates of one environment.
#[derive(Debug)]
pub struct PromptSet {
    templates: Environment<'static>,
    windows: HistoryWindows,
    /// Whether the compact templates name nothing but [`CompactContext`]: then nothing else is made ready for them.
    lean: bool,
}

impl PromptSet {
    fn compile(env: &str, source: &PromptSource) -> Result<Self> {
        let mut templates = Environment::new();
        // Block tags stand on lines of their own and leave no trace.
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
        let lean = ["play.compact", "reflect.compact"].into_iter().all(|name| names_little(&templates, name));
        Ok(PromptSet { templates, windows: source.windows, lean })
    }

    /// How much of an episode is shown.
    pub fn windows(&self) -> &HistoryWindows {
        &self.windows
    }

    /// The rules as an agent in `seat` is told them, who reads observations.
    pub fn rules(&self, seat: u8) -> Result<String> {
        self.render("rules", &RulesContext { seat, drawn: false })
    }

    /// The rules for a person in `seat`, who looks at pictures ([`Env::render`](mage_env::Env::render)) where there are any.
    pub fn rules_for_humans(&self, seat: u8) -> Result<String> {
        self.render("rules", &RulesContext { seat, drawn: true })
    }

    /// A past episode's turns as memory shows them.
    pub fn past_turns(&self, turns: &[Turn]) -> Vec<RenderedTurn> {
        let mut shown = self.windows.past.render(turns);
        truncate_older(&mut shown, self.windows.cut.past_parts);
        shown
    }

    fn shown(&self, window: HistoryWindow, episode: &Episode) -> Vec<RenderedTurn> {
        let mut turns = window.render(&episode.turns);
        truncate_older(&mut turns, self.windows.cut.parts);
        turns
    }

    fn too_long(&self, prompt_form: PromptForm, prompt: &str) -> bool {
        prompt_form == PromptForm::Full
            && self.windows.cut.prompt_chars.is_some_and(|most| prompt.chars().nth(most).is_some())
    }

    /// The prompt that asks for an action. `slots` is how each past episode stands in a compact prompt.
    pub fn play(&self, prompt_form: PromptForm, view: &PlayView<'_>, slots: &[String]) -> Result<String> {
        let prompt = self.play_with(prompt_form, view, slots, view.memory, self.windows.play)?;
        if !self.too_long(prompt_form, &prompt) {
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
        if prompt_form == PromptForm::Compact && self.lean {
            return self
                .render("play.compact", &CompactContext { slots, compact: &view.episode.last_observation().compact });
        }
        let turns = self.shown(window, view.episode);
        let context = PlayContext {
            rules: RulesContext { seat: view.seat, drawn: false },
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

    /// The prompt that asks for a reflection on a finished episode.
    pub fn reflect(&self, prompt_form: PromptForm, seat: u8, episode: &Episode) -> Result<String> {
        let prompt = self.reflect_with(prompt_form, seat, episode, self.windows.reflect)?;
        if self.too_long(prompt_form, &prompt) {
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
        if prompt_form == PromptForm::Compact && self.lean {
            return self.render(
                "reflect.compact",
                &CompactContext { slots: &[], compact: &episode.last_observation().compact },
            );
        }
        let turns = self.shown(window, episode);
        let context = ReflectContext {
            rules: RulesContext { seat, drawn: false },
            start: &episode.start.text,
            left_out: episode.turns.len() - turns.len(),
            turns,
            result: result_text(episode),
            compact: &episode.last_observation().compact,
        };
        self.render(if prompt_form == PromptForm::Full { "reflect.full" } else { "reflect.compact" }, &context)
    }

    /// A finished episode as memories keep it.
    pub(crate) fn tell(&self, episode: &Episode) -> Result<String> {
        let turns = self.past_turns(&episode.turns);
        let told = Told {
            start: &episode.start.text,
            left_out: episode.turns.len() - turns.len(),
            turns,
            result: result_text(episode),
        };
        Ok(self.render("episode", &told)?.trim_end().to_owned())
    }

    /// A text of a method's own: what it asks, or what it puts into a play prompt. Rules in it are those for `seat`.
    pub(crate) fn of_method(&self, name: &str, seat: u8, context: &impl Serialize) -> Result<String> {
        let rules = RulesContext { seat, drawn: false };
        Ok(self.render(name, &MethodContext { rules, context })?.trim_end().to_owned())
    }

    fn render(&self, name: &str, context: &impl Serialize) -> Result<String> {
        let template = self.templates.get_template(name).map_err(|e| Error::template("", name, &e))?;
        template.render(Value::from(Serde(context))).map_err(|e| Error::template("", name, &e))
    }
}

/// Whether a template names nothing but what a [`CompactContext`] has. What it includes cannot be looked into.
fn names_little(templates: &Environment<'_>, name: &str) -> bool {
    templates.get_template(name).is_ok_and(|template| {
        let elsewhere = ["include", "import", "extends"].iter().any(|word| template.source().contains(word));
        !elsewhere && template.undeclared_variables(false).iter().all(|n| ["slots", "compact"].contains(&n.as_str()))
    })
}

/// What is shown of an episode when everything else would be too long.
const LAST_TURN: HistoryWindow = HistoryWindow { turns: 1, observations: 1 };

/// What the rules can name.
#[derive(Serialize)]
struct RulesContext {
    seat: u8,
    /// Whether the reader sees pictures in place of observations.
    drawn: bool,
}

/// All that most compact templates name. There are thousands of such prompts in an update.
#[derive(Serialize)]
struct CompactContext<'a> {
    slots: &'a [String],
    compact: &'a str,
}

/// What templates that ask for an action can name.
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

/// What templates that ask for a reflection can name.
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

/// What the text of an episode can name.
#[derive(Serialize)]
struct Told<'a> {
    start: &'a str,
    left_out: usize,
    turns: Vec<RenderedTurn>,
    result: String,
}

/// What templates of methods can name.
#[derive(Serialize)]
struct MethodContext<'a, C: Serialize> {
    #[serde(flatten)]
    rules: RulesContext,
    #[serde(flatten)]
    context: &'a C,
}

/// How an episode went, in words.
pub fn result_text(episode: &Episode) -> String {
    match episode.outcome() {
        Some(Outcome::Won) => "you won",
        Some(Outcome::Lost) => "you lost",
        Some(Outcome::Draw) => "nobody won",
        None => "you ran out of turns",
    }
    .to_owned()
}
