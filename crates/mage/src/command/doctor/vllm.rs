//! Is a vLLM server what a recipe needs it to be?

use super::{
    checks::{Checks, text},
    engine::{block_on_pool, near},
};
use mage_engine::Renderer;
use mage_native::ModelDescription;
use mage_remote::{Fingerprint, ServedModel, VllmPool};
use mage_train::recipe::Recipe;

/// What tokenizers disagree about: spaces, line breaks, numbers, signs, letters of many bytes.
const TEXTS: [&str; 5] = [
    "The King bets; I fold, don't I?",
    "  two  spaces\n\n\tand a tab \r\n",
    "0 12 345 6789 3.14159 -42 1e-5",
    "{\"action\": [\"BET\", null], \"x\": {}} <b>&amp;</b> // #",
    "Gr\u{fc}\u{df}e, \u{4e16}\u{754c} \u{2013} e\u{301} \u{1f642}",
];

/// What servers are held against.
pub(super) struct VllmRequirements<'w> {
    pub(super) recipe: &'w Recipe,
    pub(super) model: &'w ModelDescription,
    /// The trainer's fingerprint, where it was there to ask, or why it gave none.
    pub(super) trained: Option<&'w Result<Fingerprint, String>>,
    /// The most tokens of a prompt with its answer, where known.
    pub(super) longest: Result<Option<usize>, String>,
}

impl VllmRequirements<'_> {
    /// Looks at one of the servers that sample; whether it serves the model.
    pub(super) fn look_at(
        &self,
        pool: &VllmPool,
        address: &str,
        served: Result<Vec<ServedModel>, String>,
        checks: &mut Checks<'_>,
    ) -> anyhow::Result<bool> {
        let vllm = &self.recipe.vllm;
        let name = if vllm.model.is_empty() { &self.recipe.model.path } else { &vllm.model };
        let found = served.and_then(|all| match all.iter().position(|s| s.name == *name) {
            Some(at) => Ok((all.len(), all[at].max_context)),
            None => {
                let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
                Err(format!("it serves {}, not `{name}`: set vllm.model", names.join(", ")))
            }
        });
        let serves = found.as_ref().map(|(names, _)| format!("{names} names")).map_err(Clone::clone);
        checks.record(format!("{address} serves the model"), serves)?;
        let Ok((_, context)) = found else { return Ok(false) };
        self.room(address, context, checks)?;
        let what = format!("{address} has the weights that are trained");
        match self.trained {
            Some(Ok(trained)) => {
                let base = text(block_on_pool(pool.base_fingerprint(address))?);
                checks.record(what, base.and_then(|base| near(trained, &base, vllm.tolerance)))?;
            }
            Some(Err(_)) => checks.skip(what, "NOT COMPARED: whoever trains does not score the fixed sequence")?,
            None => {}
        }
        if let Some(renderer) = &self.model.renderer {
            let theirs = |words: &str| text(text(block_on_pool(pool.tokenize(address, words)))?);
            checks.record(format!("{address} has the tokenizer that is here"), same_words(renderer, theirs))?;
        }
        Ok(true)
    }

    /// Whether sequences have room enough.
    fn room(&self, address: &str, context: Option<usize>, checks: &mut Checks<'_>) -> anyhow::Result<()> {
        let what = format!("{address} takes sequences as long as the recipe needs");
        let Some(context) = context else {
            return checks.skip(what, "it does not say how long they may be (max_model_len)");
        };
        match &self.longest {
            Ok(Some(longest)) if *longest > context => {
                let found = format!(
                    "{context} tokens there, and a prompt with its answer takes up to {longest}: start it with \
                     --max-model-len {longest} or more, or set fewer play.episodes and eval.episodes"
                );
                checks.record(what, Err(found))?;
            }
            Ok(Some(longest)) => {
                checks.record(what, Ok(format!("{context} tokens there, {longest} needed")))?;
            }
            Ok(None) => {
                let here = self.model.config.max_position_embeddings;
                let why = "what this environment needs cannot be tried out";
                checks.skip(what, format!("{context} tokens there, {here} here; {why}"))?;
            }
            Err(e) => checks.skip(what, format!("{context} tokens there; what is needed is not known: {e}"))?,
        }
        Ok(())
    }
}

/// Whether a server makes the same tokens of texts as the tokenizer here: of words, of what tokenizers disagree about, and of
/// every control token.
fn same_words(renderer: &Renderer, theirs: impl Fn(&str) -> Result<Vec<u32>, String>) -> Result<String, String> {
    let (words, control) = (some_words(renderer), control_words(renderer));
    // What cannot be written here (a vocabulary of letters only) cannot be compared.
    let plain = std::iter::once(words.as_str()).chain(TEXTS).filter_map(|t| Some((t, renderer.encode(t).ok()?)));
    let steering = (control.as_str(), text(renderer.encode_trusted(&control))?);
    let mut compared = (0, 0);
    for (words, ours) in plain.chain([steering]).filter(|(_, ours)| !ours.is_empty()) {
        let theirs = theirs(words)?;
        if let Some(at) = (0..theirs.len().max(ours.len())).find(|at| theirs.get(*at) != ours.get(*at)) {
            let token = |all: &[u32]| {
                let id = all.get(at)?;
                Some(format!("{id} (`{}`)", renderer.token_text(*id).unwrap_or_default()))
            };
            let token = |all: &[u32]| token(all).unwrap_or_else(|| "none".to_owned());
            return Err(format!("token {at} of {words:?} is {} there, {} here", token(&theirs), token(&ours)));
        }
        compared = (compared.0 + 1, compared.1 + ours.len());
    }
    Ok(format!("the same {} tokens of {} texts", compared.1, compared.0))
}

/// Some words of the vocabulary, none of which steers.
fn some_words(renderer: &Renderer) -> String {
    let plain = |id: u32| {
        let word = renderer.token_text(id).filter(|t| t.chars().all(|c| c.is_ascii_alphanumeric()))?;
        renderer.encode(&word).is_ok_and(|tokens| tokens == [id]).then_some(word)
    };
    let words: Vec<String> = (0..renderer.vocabulary() as u32).filter_map(plain).take(8).collect();
    words.join(" ")
}

/// Every control token, one after the other.
fn control_words(renderer: &Renderer) -> String {
    let all = (0..renderer.vocabulary() as u32).filter(|id| renderer.is_control(*id));
    all.filter_map(|id| renderer.token_text(id)).collect()
}
