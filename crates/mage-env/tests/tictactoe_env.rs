//! The Tic-Tac-Toe environment: openings, invalid moves, rewards and scores, from both seats.

use mage_env::{
    End, Env, EnvId, EnvSpec, OpponentSpec, OptionMap, Outcome, ParsedAction, Seed, Task, tictactoe::TicTacToeSpec,
};
use std::collections::HashSet;

fn task(kind: &str, seat: u8, seed: u64, options: OptionMap) -> Task {
    Task {
        env: EnvId::new("tictactoe"),
        options,
        opponent: Some(OpponentSpec::of_kind(kind)),
        seat,
        seed: Seed::new(seed),
    }
}

fn env(kind: &str, seat: u8, seed: u64, options: OptionMap) -> Box<dyn Env> {
    TicTacToeSpec::default().build(&task(kind, seat, seed, options)).unwrap()
}

fn act(env: &mut dyn Env, text: &str) -> mage_env::Step {
    let action = env.parse(text);
    env.step(&action)
}

#[test]
fn fixed_opening_repeats_in_every_episode_and_fresh_one_does_not() {
    for kind in ["random", "mcts"] {
        let openings = |options: OptionMap, seed| {
            let mut env = env(kind, 1, seed, options);
            (0..20).map(|n| env.reset(n).compact).collect::<HashSet<_>>()
        };
        let fixed = OptionMap::default().with("opening", "fixed");
        assert!((0..10).all(|seed| openings(fixed.clone(), seed).len() == 1), "{kind}");
        let all: HashSet<_> = (0..40).flat_map(|seed| openings(fixed.clone(), seed)).collect();
        assert!(all.len() > 4, "{kind}: openings differ between tasks");
        assert!((0..3).all(|seed| openings(OptionMap::default(), seed).len() > 2), "{kind}");
    }
}

#[test]
fn moves_after_a_fixed_opening_differ() {
    let mut env = env("random", 1, 4, OptionMap::default().with("opening", "fixed"));
    let mut replies = HashSet::new();
    for n in 0..20 {
        env.reset(n);
        let first = env.legal().unwrap()[0].clone();
        replies.insert(act(&mut *env, &first).observation.compact);
    }
    assert!(replies.len() > 2);
}

#[test]
fn invalid_move_leaves_the_state_unchanged_and_explains_why() {
    let mut env = env("preferred_1", 0, 0, OptionMap::default());
    let start = env.reset(0);
    let before = act(&mut *env, "(1, 1)").observation;
    assert_ne!(before, start);
    for (text, why) in [
        ("(1, 1)", "is taken"),
        ("(2, 2)", "is taken"),
        ("(0, 4)", "not on the board"),
        ("", "names no cell"),
        ("pass", "names no cell"),
    ] {
        let ParsedAction::Invalid { reason } = env.parse(text) else { panic!("{text} was accepted") };
        assert!(reason.contains(why), "{reason}");
        let step = act(&mut *env, text);
        assert!(!step.valid && step.reward == 0.0 && step.end.is_none());
        assert_eq!(step.observation, before);
    }
    // An action on a taken cell is invalid without parsing, too.
    assert!(!env.step(&ParsedAction::Act("(2,2)".to_owned())).valid);
}

#[test]
fn score_is_one_for_a_win_and_reward_is_negative_for_a_loss() {
    // The second list takes the corners in order: 11, 13, 31, 33.
    let mut env = env("preferred_2", 0, 0, OptionMap::default());
    env.reset(0);
    act(&mut *env, "(2,1)");
    act(&mut *env, "(2,2)");
    let won = act(&mut *env, "(2,3)");
    assert_eq!(won.end, Some(End::Terminated { outcome: Outcome::Won, score: 1.0 }));
    assert_eq!(won.reward, 1.0);

    env.reset(1);
    act(&mut *env, "(2,1)"); // 11
    act(&mut *env, "(2,2)"); // 13
    act(&mut *env, "(3,2)"); // 31
    let on = act(&mut *env, "(1,2)"); // fills the middle column
    assert_eq!(on.end, Some(End::Terminated { outcome: Outcome::Won, score: 1.0 }));

    // The third list takes the edges, then the centre: 12, 21, 23, 32, 22, and has a line with its fifth.
    let mut env = self::env("preferred_3", 1, 0, OptionMap::default());
    assert_eq!(env.reset(0).compact, ". O . . . . . . .");
    act(&mut *env, "(1,1)"); // 21
    act(&mut *env, "(3,3)"); // 23
    act(&mut *env, "(1,3)"); // 32
    let lost = act(&mut *env, "(3,1)"); // 22
    assert_eq!(lost.end, Some(End::Terminated { outcome: Outcome::Lost, score: 0.0 }));
    assert_eq!(lost.reward, -1.0);
    assert_eq!(env.legal(), Some(vec![]));
    assert!(!act(&mut *env, "(3,3)").valid, "actions after the end are invalid");
}

#[test]
fn equal_tasks_give_equal_games() {
    for seat in 0..2 {
        let game = |seed| {
            let mut env = env("mcts", seat, seed, OptionMap::default());
            let mut seen = vec![env.reset(1)];
            while let Some(first) = env.legal().unwrap().first().cloned() {
                seen.push(act(&mut *env, &first).observation);
            }
            seen
        };
        assert_eq!(game(3), game(3));
        assert!((0..20).any(|seed| game(seed) != game(3)));
    }
}

#[test]
fn invalid_tasks_are_rejected_with_a_reason() {
    let env_spec = TicTacToeSpec::default();
    let error = |task: &Task| env_spec.build(task).err().unwrap().to_string();
    assert!(error(&task("perfekt", 0, 0, OptionMap::default())).contains("did you mean `perfect`"));
    assert!(error(&task("perfect", 2, 0, OptionMap::default())).contains("seat 2 does not exist"));
    assert!(error(&task("perfect", 0, 0, OptionMap::default().with("opening", "odd"))).contains("fresh"));
    assert!(
        error(&Task { opponent: None, ..task("perfect", 0, 0, OptionMap::default()) }).contains("opponent is needed")
    );
    let with = |kind: &str, key: &str, value: serde_json::Value| {
        let mut t = task(kind, 0, 0, OptionMap::default());
        let spec = t.opponent.as_mut().unwrap();
        spec.params = spec.params.clone().with(key, value);
        error(&t)
    };
    assert!(with("preferred", "order", serde_json::json!([[1, 1], [1, 1]])).contains("[1, 1] is listed twice"));
    assert!(with("preferred", "order", serde_json::json!([[1, 4]])).contains("is not on the board"));
    assert!(with("preferred", "order", serde_json::json!([])).contains("empty"));
    assert!(with("blind_line", "line", "row-4".into()).contains("did you mean `row-"));
    for number in [0_u64, 1_001, 4_000_000_000] {
        let message = with("mcts", "simulations", number.into());
        assert!(message.contains(&format!("{number} simulations a move; there may be 1 to 1000")), "{message}");
    }
    for alpha in [-5000.0, 5000.0] {
        let message = with("biased_random", "alpha", alpha.into());
        assert!(message.contains("it must be a number from -40 to 40"), "{message}");
    }
    assert!(with("mcts", "simulation", 5.into()).contains("unknown field `simulation`"));
    assert!(with("perfect", "ties", "none".into()).contains("uniform"));
}
