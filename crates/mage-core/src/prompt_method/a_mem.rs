//! A-MEM: notes that describe, link and revise each other.
//!
//! After each episode the model describes it in a note (keywords, context, tags). Given the most similar existing
//! notes, it then decides which belong together and which to revise. Before each action the prompt shows the notes most
//! similar to the current observation and the notes linked to them.
//!
//! A completion that cannot be parsed changes nothing: without a description no note is stored, without a decision no
//! link.

use crate::{
    Completion, Embeddings, EpisodeConfig, Memory, MemoryStep, Message, RecallQuery, RequestBody, RequestKind, Result,
    json,
    memory::FinishedEpisode,
    nearest,
    prompt::{MemoryBlock, PromptSet},
};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};

/// Number of similar notes that a new note is compared with.
const NEIGHBOURS: usize = 5;
/// Default number of notes in a play prompt.
const DEFAULT_NOTES: usize = 10;

/// A note on one episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct MemoryNote {
    /// Index in order of creation, from 1.
    id: u32,
    /// The episode, from 1.
    episode: u32,
    /// The transcript of the episode.
    content: String,
    keywords: Vec<String>,
    context: String,
    tags: Vec<String>,
    /// Ids of linked notes.
    links: BTreeSet<u32>,
}

impl MemoryNote {
    /// The text for retrieval.
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.content, self.context, self.keywords.join(" "), self.tags.join(" "))
    }
}

/// All notes.
#[derive(Clone, Debug, Default)]
pub(super) struct NoteStore {
    notes: Vec<MemoryNote>,
}

impl NoteStore {
    fn get(&self, id: u32) -> Option<&MemoryNote> {
        self.notes.get(id.checked_sub(1)? as usize)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut MemoryNote> {
        self.notes.get_mut(id.checked_sub(1)? as usize)
    }

    /// The notes most similar to a text, most similar first.
    fn nearest(&self, embeddings: &dyn Embeddings, text: &str, count: usize) -> Result<Vec<&MemoryNote>> {
        let texts: Vec<String> = self.notes.iter().map(MemoryNote::text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Ok(nearest(embeddings, text, &texts, count)?.into_iter().map(|i| &self.notes[i]).collect())
    }

    /// The most similar notes, then up to `count` notes linked to them.
    fn recall(&self, embeddings: &dyn Embeddings, text: &str, count: usize) -> Result<Vec<&MemoryNote>> {
        let mut found = self.nearest(embeddings, text, count)?;
        let direct: BTreeSet<u32> = found.iter().map(|n| n.id).collect();
        let mut linked = BTreeSet::new();
        for id in found.iter().flat_map(|n| &n.links) {
            if !direct.contains(id) && linked.len() < count {
                linked.insert(*id);
            }
        }
        found.extend(linked.into_iter().filter_map(|id| self.get(id)));
        Ok(found)
    }
}

/// The decision of the model about a new note.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evolution {
    links: Vec<u32>,
    tags: Option<Vec<String>>,
    neighbours: Vec<(u32, Option<String>, Vec<String>)>,
}

/// The memory of the A-MEM method.
pub(super) struct NoteMemory {
    config: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    embeddings: Arc<dyn Embeddings>,
    store: Arc<Mutex<NoteStore>>,
    shared: bool,
}

impl NoteMemory {
    pub(super) fn new(
        config: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
        embeddings: Arc<dyn Embeddings>,
        store: Arc<Mutex<NoteStore>>,
        shared: bool,
    ) -> Self {
        NoteMemory { config, prompts, embeddings, store, shared }
    }

    fn store(&self) -> MutexGuard<'_, NoteStore> {
        super::lock(&self.store)
    }

    fn request(&self, kind: RequestKind, prompt: String) -> RequestBody {
        RequestBody {
            kind,
            messages: vec![Message::user(prompt)],
            allowed: None,
            max_tokens: self.config.reflect_tokens,
            trainable: false,
        }
    }

    /// Creates the note of an episode from the description in `completion`.
    fn describe(
        &self,
        finished: &FinishedEpisode<'_>,
        content: String,
        completion: &Completion,
    ) -> std::result::Result<MemoryNote, String> {
        let object = json::last_object(&completion.text)?;
        let context = object.get("context").and_then(|c| c.as_str()).unwrap_or_default().trim().to_owned();
        let keywords = json::string_list(object.get("keywords"));
        if context.is_empty() || keywords.is_empty() {
            return Err("the description has no context or no keywords".to_owned());
        }
        let tags = json::string_list(object.get("tags"));
        let id = self.store().notes.len() as u32 + 1;
        Ok(MemoryNote { id, episode: finished.index + 1, content, keywords, context, tags, links: BTreeSet::new() })
    }
}

/// Parses a decision about a new note; it can refer to notes in `shown` only.
fn parse_evolution(completion: &Completion, shown: &[u32]) -> std::result::Result<Evolution, String> {
    let object = json::last_object(&completion.text)?;
    let is_shown = |id: &u32| shown.contains(id);
    let actions = json::string_list(object.get("actions"));
    let has_action = |action: &str| actions.iter().any(|a| a == action);
    if !object.contains_key("evolve") && actions.is_empty() {
        return Err("the answer does not state whether to evolve".to_owned());
    }
    let mut evolution = Evolution::default();
    if !json::is_true(object.get("evolve")) {
        return Ok(evolution);
    }
    if has_action("strengthen") {
        evolution.links = json::integer_list(object.get("links")).into_iter().filter(is_shown).collect();
        evolution.tags = Some(json::string_list(object.get("tags"))).filter(|t| !t.is_empty());
    }
    if has_action("update_neighbor") {
        for change in object.get("neighbors").and_then(|n| n.as_array()).into_iter().flatten() {
            if let Some(id) = change.get("id").and_then(json::integer).filter(is_shown) {
                let context = change.get("context").and_then(|c| c.as_str()).map(|c| c.trim().to_owned());
                let tags = json::string_list(change.get("tags"));
                evolution.neighbours.push((id, context.filter(|c| !c.is_empty()), tags));
            }
        }
    }
    Ok(evolution)
}

impl Memory for NoteMemory {
    fn recall(&mut self, query: &RecallQuery<'_>, _completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let store = self.store();
        if store.notes.is_empty() {
            return Ok(MemoryStep::done(MemoryBlock::default()));
        }
        let (start, latest) = (&query.current.start.text, &query.current.last_observation().text);
        let query_text = if query.turn == 0 { start.clone() } else { format!("{start}\n{latest}") };
        let notes = store.recall(&*self.embeddings, &query_text, self.config.recall_limit.unwrap_or(DEFAULT_NOTES))?;
        let context = NotesContext { notes, shared: self.shared };
        let notes = self.prompts.method_prompt("notes", query.seat, &context)?;
        Ok(MemoryStep::done(MemoryBlock { entries: Vec::new(), notes }))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, completions: &[Completion]) -> Result<MemoryStep<()>> {
        let content = self.prompts.episode_text(finished.episode)?;
        let Some(description) = completions.first() else {
            let prompt = self.prompts.method_prompt("note", finished.seat, &NoteContext { content: &content })?;
            return Ok(MemoryStep::Request(self.request(RequestKind::Note, prompt)));
        };
        let mut note = match self.describe(finished, content, description) {
            Ok(note) => note,
            Err(reason) => return Ok(MemoryStep::Done((), vec![(0, reason)])),
        };
        let mut store = self.store();
        let neighbours: Vec<MemoryNote> =
            store.nearest(&*self.embeddings, &note.text(), NEIGHBOURS)?.into_iter().cloned().collect();
        let mut unusable = Vec::new();
        match completions.get(1) {
            None if neighbours.is_empty() => {}
            None => {
                drop(store);
                let context = EvolveContext { note: &note, neighbours: &neighbours };
                let prompt = self.prompts.method_prompt("evolve", finished.seat, &context)?;
                return Ok(MemoryStep::Request(self.request(RequestKind::Evolve, prompt)));
            }
            Some(completion) => {
                let shown: Vec<u32> = neighbours.iter().map(|n| n.id).collect();
                match parse_evolution(completion, &shown) {
                    Err(reason) => unusable.push((1, reason)),
                    Ok(evolution) => {
                        note.tags = evolution.tags.unwrap_or(note.tags);
                        for id in evolution.links {
                            note.links.insert(id);
                            store.get_mut(id).into_iter().for_each(|n| n.links.extend([note.id]));
                        }
                        for (id, context, tags) in evolution.neighbours {
                            let Some(neighbour) = store.get_mut(id) else { continue };
                            neighbour.context = context.unwrap_or_else(|| neighbour.context.clone());
                            if !tags.is_empty() {
                                neighbour.tags = tags;
                            }
                        }
                    }
                }
            }
        }
        store.notes.push(note);
        Ok(MemoryStep::Done((), unusable))
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn contents(&self) -> serde_json::Value {
        serde_json::to_value(&self.store().notes).expect("notes are plain data")
    }
}

#[derive(Serialize)]
struct NoteContext<'a> {
    content: &'a str,
}

#[derive(Serialize)]
struct EvolveContext<'a> {
    note: &'a MemoryNote,
    neighbours: &'a [MemoryNote],
}

#[derive(Serialize)]
struct NotesContext<'a> {
    notes: Vec<&'a MemoryNote>,
    shared: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexical;

    fn note(id: u32, content: &str, links: &[u32]) -> MemoryNote {
        MemoryNote {
            id,
            episode: id,
            content: content.to_owned(),
            keywords: Vec::new(),
            context: String::new(),
            tags: Vec::new(),
            links: links.iter().copied().collect(),
        }
    }

    #[test]
    fn recall_adds_linked_notes_up_to_the_limit() {
        let notes = vec![
            note(1, "queen folds to a bet", &[2, 3]),
            note(2, "weather", &[1]),
            note(3, "music", &[1]),
            note(4, "chairs", &[]),
        ];
        let store = NoteStore { notes };
        let ids = |count| -> Vec<u32> {
            store.recall(&Lexical, "a bet against a queen", count).unwrap().iter().map(|n| n.id).collect()
        };
        assert_eq!(ids(1), [1, 2], "one by similarity, one linked");
        assert_eq!(ids(2), [1, 2, 3]);
        assert_eq!(ids(9).len(), 4);
    }

    #[test]
    fn evolution_changes_shown_notes_only() {
        let text = r#"{"evolve": true, "actions": ["strengthen", "update_neighbor"], "links": [1, 9, "2"],
            "tags": ["new"], "neighbors": [{"id": "[2]", "context": " better ", "tags": []}, {"id": 7, "context": "x"}, 3]}"#;
        let evolution = parse_evolution(&Completion::from_text(text), &[1, 2]).unwrap();
        let expected = Evolution {
            links: vec![1, 2],
            tags: Some(vec!["new".to_owned()]),
            neighbours: vec![(2, Some("better".to_owned()), vec![])],
        };
        assert_eq!(evolution, expected);
        let no = parse_evolution(&Completion::from_text(r#"{"evolve": false, "links": [1]}"#), &[1]).unwrap();
        assert_eq!(no, Evolution::default());
        let half =
            r#"{"evolve": "yes", "actions": "strengthen", "links": [1], "neighbors": [{"id": 1, "context": "x"}]}"#;
        let half = parse_evolution(&Completion::from_text(half), &[1]).unwrap();
        assert_eq!((half.links, half.neighbours), (vec![1], vec![]), "only listed actions are applied");
        assert!(parse_evolution(&Completion::from_text("{\"links\": [1]}"), &[1]).is_err());
        assert!(parse_evolution(&Completion::from_text("no"), &[1]).is_err());
    }
}
