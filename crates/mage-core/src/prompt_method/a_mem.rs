//! How do notes organise themselves? (A-MEM)
//!
//! After each episode a note is written: what happened, and what the model says it is about (keywords, context, tags). Next to
//! the notes nearest to it, the model then decides what belongs together and what should be read differently. Before each
//! choice the notes nearest to what is seen now are shown, with those they are linked to.
//!
//! An answer that cannot be read changes nothing: without a description there is no note, without a decision no link.

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
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many neighbours a new note is shown to.
const NEIGHBOURS: usize = 5;
/// How many notes are shown before a choice unless the settings say otherwise.
const SHOWN: usize = 10;

/// What is known about one episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Note {
    /// From 1, in the order they were written.
    id: u32,
    /// The episode it is about, from 1.
    episode: u32,
    /// What happened.
    content: String,
    keywords: Vec<String>,
    context: String,
    tags: Vec<String>,
    /// Notes it belongs with.
    links: BTreeSet<u32>,
}

impl Note {
    /// What it is found by.
    fn text(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.content, self.context, self.keywords.join(" "), self.tags.join(" "))
    }
}

/// All notes.
#[derive(Debug, Default)]
pub(super) struct NoteStore {
    notes: Vec<Note>,
}

impl NoteStore {
    fn get(&self, id: u32) -> Option<&Note> {
        self.notes.get(id.checked_sub(1)? as usize)
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut Note> {
        self.notes.get_mut(id.checked_sub(1)? as usize)
    }

    /// The notes nearest to a text, nearest first.
    fn near(&self, embeddings: &dyn Embeddings, text: &str, count: usize) -> Result<Vec<&Note>> {
        let texts: Vec<String> = self.notes.iter().map(Note::text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Ok(nearest(embeddings, text, &texts, count)?.into_iter().map(|i| &self.notes[i]).collect())
    }

    /// The nearest notes, then notes linked to them that are not among them, at most as many again.
    fn recall(&self, embeddings: &dyn Embeddings, text: &str, count: usize) -> Result<Vec<&Note>> {
        let mut found = self.near(embeddings, text, count)?;
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

/// What the model decided about a new note.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evolution {
    links: Vec<u32>,
    tags: Option<Vec<String>>,
    neighbours: Vec<(u32, Option<String>, Vec<String>)>,
}

/// A memory of notes.
pub(super) struct NoteMemory {
    settings: Arc<EpisodeConfig>,
    prompts: Arc<PromptSet>,
    embeddings: Arc<dyn Embeddings>,
    store: Arc<Mutex<NoteStore>>,
    shared: bool,
}

impl NoteMemory {
    pub(super) fn new(
        settings: Arc<EpisodeConfig>,
        prompts: Arc<PromptSet>,
        embeddings: Arc<dyn Embeddings>,
        store: Arc<Mutex<NoteStore>>,
        shared: bool,
    ) -> Self {
        NoteMemory { settings, prompts, embeddings, store, shared }
    }

    fn store(&self) -> MutexGuard<'_, NoteStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, kind: RequestKind, prompt: String) -> RequestBody {
        RequestBody {
            kind,
            messages: vec![Message::user(prompt)],
            allowed: None,
            max_tokens: self.settings.reflect_tokens,
            trainable: false,
        }
    }

    /// The note an episode comes to with the model's description of it.
    fn describe(
        &self,
        finished: &FinishedEpisode<'_>,
        content: String,
        answer: &Completion,
    ) -> std::result::Result<Note, String> {
        let read = json::object(&answer.text)?;
        let context = read.get("context").and_then(|c| c.as_str()).unwrap_or_default().trim().to_owned();
        let keywords = json::texts(read.get("keywords"));
        if context.is_empty() || keywords.is_empty() {
            return Err("the description has no context or no keywords".to_owned());
        }
        let tags = json::texts(read.get("tags"));
        let id = self.store().notes.len() as u32 + 1;
        Ok(Note { id, episode: finished.index + 1, content, keywords, context, tags, links: BTreeSet::new() })
    }
}

/// What an answer says about a new note; only notes that were shown can be named.
fn read_evolution(answer: &Completion, shown: &[u32]) -> std::result::Result<Evolution, String> {
    let read = json::object(&answer.text)?;
    let known = |id: &u32| shown.contains(id);
    let actions = json::texts(read.get("actions"));
    let does = |action: &str| actions.iter().any(|a| a == action);
    if !read.contains_key("evolve") && actions.is_empty() {
        return Err("the answer does not say whether to evolve".to_owned());
    }
    let mut evolution = Evolution::default();
    if !json::yes(read.get("evolve")) {
        return Ok(evolution);
    }
    if does("strengthen") {
        evolution.links = json::numbers(read.get("links")).into_iter().filter(known).collect();
        evolution.tags = Some(json::texts(read.get("tags"))).filter(|t| !t.is_empty());
    }
    if does("update_neighbor") {
        for change in read.get("neighbors").and_then(|n| n.as_array()).into_iter().flatten() {
            if let Some(id) = change.get("id").and_then(json::number).filter(known) {
                let context = change.get("context").and_then(|c| c.as_str()).map(|c| c.trim().to_owned());
                let tags = json::texts(change.get("tags"));
                evolution.neighbours.push((id, context.filter(|c| !c.is_empty()), tags));
            }
        }
    }
    Ok(evolution)
}

impl Memory for NoteMemory {
    fn recall(&mut self, query: &RecallQuery<'_>, _answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let store = self.store();
        if store.notes.is_empty() {
            return Ok(MemoryStep::done(MemoryBlock::default()));
        }
        let (start, now) = (&query.current.start.text, &query.current.last_observation().text);
        let seen = if query.turn == 0 { start.clone() } else { format!("{start}\n{now}") };
        let notes = store.recall(&*self.embeddings, &seen, self.settings.recall_limit.unwrap_or(SHOWN))?;
        let shown = Shown { notes, shared: self.shared };
        let notes = self.prompts.of_method("notes", query.seat, &shown)?;
        Ok(MemoryStep::done(MemoryBlock { entries: Vec::new(), notes }))
    }

    fn record(&mut self, finished: &FinishedEpisode<'_>, answers: &[Completion]) -> Result<MemoryStep<()>> {
        let content = self.prompts.tell(finished.episode)?;
        let Some(described) = answers.first() else {
            let prompt = self.prompts.of_method("note", finished.seat, &Content { content: &content })?;
            return Ok(MemoryStep::Request(self.ask(RequestKind::Note, prompt)));
        };
        let mut note = match self.describe(finished, content, described) {
            Ok(note) => note,
            Err(reason) => return Ok(MemoryStep::Done((), vec![(0, reason)])),
        };
        let mut store = self.store();
        let neighbours: Vec<Note> =
            store.near(&*self.embeddings, &note.text(), NEIGHBOURS)?.into_iter().cloned().collect();
        let mut unusable = Vec::new();
        match answers.get(1) {
            None if neighbours.is_empty() => {}
            None => {
                drop(store);
                let context = Evolve { note: &note, neighbours: &neighbours };
                let prompt = self.prompts.of_method("evolve", finished.seat, &context)?;
                return Ok(MemoryStep::Request(self.ask(RequestKind::Evolve, prompt)));
            }
            Some(answer) => {
                let shown: Vec<u32> = neighbours.iter().map(|n| n.id).collect();
                match read_evolution(answer, &shown) {
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
struct Content<'a> {
    content: &'a str,
}

#[derive(Serialize)]
struct Evolve<'a> {
    note: &'a Note,
    neighbours: &'a [Note],
}

#[derive(Serialize)]
struct Shown<'a> {
    notes: Vec<&'a Note>,
    shared: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexical;

    fn note(id: u32, content: &str, links: &[u32]) -> Note {
        Note {
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
    fn linked_notes_come_along_up_to_a_limit() {
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
        assert_eq!(ids(1), [1, 2], "one nearest, and as many linked");
        assert_eq!(ids(2), [1, 2, 3]);
        assert_eq!(ids(9).len(), 4);
    }

    #[test]
    fn only_what_was_shown_can_be_changed() {
        let said = r#"{"evolve": true, "actions": ["strengthen", "update_neighbor"], "links": [1, 9, "2"],
            "tags": ["new"], "neighbors": [{"id": "[2]", "context": " better ", "tags": []}, {"id": 7, "context": "x"}, 3]}"#;
        let evolution = read_evolution(&Completion::from_text(said), &[1, 2]).unwrap();
        let expected = Evolution {
            links: vec![1, 2],
            tags: Some(vec!["new".to_owned()]),
            neighbours: vec![(2, Some("better".to_owned()), vec![])],
        };
        assert_eq!(evolution, expected);
        let no = read_evolution(&Completion::from_text(r#"{"evolve": false, "links": [1]}"#), &[1]).unwrap();
        assert_eq!(no, Evolution::default());
        let half =
            r#"{"evolve": "yes", "actions": "strengthen", "links": [1], "neighbors": [{"id": 1, "context": "x"}]}"#;
        let half = read_evolution(&Completion::from_text(half), &[1]).unwrap();
        assert_eq!((half.links, half.neighbours), (vec![1], vec![]), "what is not among the actions is not done");
        assert!(read_evolution(&Completion::from_text("{\"links\": [1]}"), &[1]).is_err());
        assert!(read_evolution(&Completion::from_text("no"), &[1]).is_err());
    }
}
