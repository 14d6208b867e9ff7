//! What rows of logits say, and how each logit bears on it.

use super::{Bench, near, numbers, slopes};
use crate::step_inputs::{ASK, Candidates, GpuLogitQuery, GpuLogitResult, GpuStepInputs, READERS};
use crate::stream::args;
use crate::token_trie::{DeviceTries, TokenTrie, tests::words};

/// Log-probability and entropy of a token among candidates.
fn said(logits: &[f64], candidates: &[u32], token: u32) -> (f64, f64) {
    let most = candidates.iter().map(|c| logits[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let sum = candidates.iter().map(|c| (logits[*c as usize] - most).exp()).sum::<f64>().ln() + most;
    let entropy = candidates.iter().map(|c| logits[*c as usize] - sum).map(|l| -l * l.exp()).sum();
    (logits[token as usize] - sum, entropy)
}

#[test]
fn scores_draws_and_gradients_of_logits() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (v, stride) = (b.shape.vocab_size, b.shape.logits_stride());
    let rows = 4;
    let logits: Vec<f64> = numbers(rows * stride, 5).iter().map(|x| 3.0 * x).collect();
    let all: Vec<u32> = (0..v as u32).collect();
    let some: Vec<u32> = vec![3, 17, 40, 41, 200, 300];
    let candidates = [&all, &some, &all, &some];
    let tokens = [7, 41, 300, 3];
    let (mut packet, f, s) = (GpuStepInputs::default(), &b.model.program.functions, &b.stream);
    let scores = packet.leave(rows * ASK);
    let draws = packet.leave(rows * ASK);
    for (i, token) in tokens.into_iter().enumerate() {
        let allowed = (i % 2 == 1).then_some(&some[..]);
        packet.ask(scores, i, &GpuLogitQuery::score(token, allowed), 0);
        // The likeliest, then draws under every filter at once.
        let greedy = GpuLogitQuery { token: None, temperature: 0.0, ..GpuLogitQuery::score(0, allowed) };

        let drawn = GpuLogitQuery {
            token: None,
            top_k: 5,
            temperature: 1.5,
            top_p: 0.9,
            min_p: 0.01,
            uniform: 0.4,
            candidates: Candidates::from_list(allowed),
        };
        packet.ask(draws, i, if i < 2 { &greedy } else { &drawn }, 0);
    }
    let words = b.put(&packet.words);
    let bl = b.put(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>());
    let (choices, slopes_on) = (b.put(&vec![[0_f32; 4]; rows]), b.put(&[[0.7_f32, -0.3]; 4]));
    let (answers, gradient) = (b.put(&vec![GpuLogitResult::default(); rows]), b.room(rows * stride));
    let common = (bl.at(0), stride as u64, v, words.at(0));
    let (l, st, vo, w) = common;
    s.launch(f.distribution, (rows, 1, 1), READERS, 0, args![l, st, vo, w, scores, choices.at(0)]).unwrap();
    s.launch(
        f.distribution_grad,
        (rows, 1, 1),
        1024,
        0,
        args![l, st, vo, w, scores, choices.at(0), slopes_on.at(0), gradient.at(0)],
    )
    .unwrap();
    s.launch(f.answer, (rows, 1, 1), READERS, 0, args![l, st, vo, w, 0_u64, draws, answers.at(0)]).unwrap();
    s.wait().unwrap();
    let (got, gradient, answers) = (choices.to_vec().unwrap(), b.read(&gradient), answers.to_vec().unwrap());
    for i in 0..rows {
        let row = &logits[i * stride..][..v];
        let (logprob, entropy) = said(row, candidates[i], tokens[i]);
        near("said", &[f64::from(got[i][0]), f64::from(got[i][1])], &[logprob, entropy], 1e-5);
        let want = slopes(row, |row| {
            let (logprob, entropy) = said(row, candidates[i], tokens[i]);
            0.7 * logprob - 0.3 * entropy
        });
        near("gradient", &gradient[i * stride..][..v], &want, 0.005);
        let mut order = candidates[i].clone();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        let likeliest = order[0];
        if i < 2 {
            assert_eq!(answers[i].token, likeliest);
        } else {
            assert!(order[..5].contains(&answers[i].token), "{} was cut", answers[i].token);
        }
        near("drawn", &[f64::from(answers[i].logprob)], &[said(row, candidates[i], answers[i].token).0], 1e-5);
    }
}

/// Weights of candidates at a temperature, after the filters: a beginning of them by falling weight and rising number.
fn kept(row: &[f64], candidates: &[u32], ask: &GpuLogitQuery<'_>) -> Vec<(u32, f64)> {
    let most = candidates.iter().map(|c| row[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |c: u32| ((row[c as usize] - most) / f64::from(ask.temperature)).exp();
    let mut order: Vec<(u32, f64)> = candidates.iter().map(|c| (*c, weight(*c))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if ask.top_k > 0 {
        order.truncate(ask.top_k as usize);
    }
    let enough = f64::from(ask.top_p) * order.iter().map(|(_, w)| w).sum::<f64>();
    let mut sum = 0.0;
    order.retain(|(_, w)| {
        let stays = ask.top_p >= 1.0 || sum < enough;
        sum += w;
        stays && *w >= f64::from(ask.min_p)
    });
    order.sort_by_key(|(c, _)| *c);
    order
}

/// A draw under each filter, and under several.
fn filters(plain: GpuLogitQuery<'_>) -> [GpuLogitQuery<'_>; 6] {
    [
        plain,
        GpuLogitQuery { temperature: 0.3, ..plain },
        GpuLogitQuery { top_k: 300, ..plain },
        GpuLogitQuery { top_p: 0.7, temperature: 2.0, ..plain },
        GpuLogitQuery { min_p: 0.2, ..plain },
        GpuLogitQuery { top_k: 9000, top_p: 0.5, min_p: 0.1, temperature: 0.8, ..plain },
    ]
}

#[test]
fn draws_from_many_candidates_lie_where_the_point_says() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (v, stride) = (20_011, 20_016);
    let odd: Vec<u32> = (0..v as u32).filter(|t| t % 2 == 1).collect();
    let plain = GpuLogitQuery { token: None, ..GpuLogitQuery::score(0, None) };
    let mut asks = Vec::new();
    for candidates in [Candidates::All, Candidates::List(&odd)] {
        for uniform in [0.0, 0.01, 0.3, 0.5, 0.77, 0.999_9] {
            asks.extend(filters(GpuLogitQuery { uniform, candidates, ..plain }));
        }
    }
    let rows = asks.len();
    // Far from even: most of the mass is with few.
    let logits: Vec<f64> = numbers(rows * stride, 9).iter().map(|x| f64::from((8.0 * x * x * x) as f32)).collect();
    let (mut packet, f, s) = (GpuStepInputs::default(), &b.model.program.functions, &b.stream);
    let at = packet.leave(rows * ASK);
    asks.iter().enumerate().for_each(|(i, ask)| packet.ask(at, i, ask, 0));
    let (words, bl) = (b.put(&packet.words), b.put(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>()));
    let answers = b.put(&vec![GpuLogitResult::default(); rows]);
    let given = args![bl.at(0), stride as u64, v, words.at(0), 0_u64, at, answers.at(0)];
    s.launch(f.answer, (rows, 1, 1), READERS, 0, given).unwrap();
    s.wait().unwrap();
    let all: Vec<u32> = (0..v as u32).collect();
    for (i, (answer, ask)) in answers.to_vec().unwrap().iter().zip(&asks).enumerate() {
        let row = &logits[i * stride..][..v];
        let candidates = if ask.candidates == Candidates::All { &all } else { &odd };
        let order = kept(row, candidates, ask);
        let total: f64 = order.iter().map(|(_, w)| w).sum();
        let place = order.iter().position(|(c, _)| *c == answer.token);
        let place = place.unwrap_or_else(|| panic!("{ask:?} drew {}, which was cut", answer.token));
        let before: f64 = order[..place].iter().map(|(_, w)| w).sum();
        let (goal, near_enough) = (f64::from(ask.uniform) * total, 1e-4 * total);
        let its = before - near_enough..=before + order[place].1 + near_enough;
        assert!(its.contains(&goal), "row {i}, {ask:?}: {goal} is not in {its:?} of {}", answer.token);
        let (logprob, _) = said(row, candidates, answer.token);
        let second = (order[place].1 / total).ln();
        near("drawn", &[f64::from(answer.logprob), f64::from(answer.aux)], &[logprob, second], 1e-3);
    }
}

#[test]
fn draws_at_a_node_are_those_from_its_list_and_lead_to_the_next() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (v, stride) = (20_011, 20_016);
    let odd: Vec<u32> = (0..v as u32).filter(|t| t % 2 == 1).collect();
    let (few, one) = ([3_u32, 17, 40, 41, 200, 300, 20_010], [12_u32]);
    // Any node may follow any: what counts is that it is told apart from its neighbours'.
    let nodes = odd.len() as u32 + 4;
    let after = |tokens: &[u32], by: u32| tokens.iter().map(|t| (t * by + 1) % nodes).collect::<Vec<_>>();
    let following = [after(&odd, 7), after(&few, 11), after(&one, 3)];
    let (ends, thinking) = (19_000, nodes - 1);
    let mut all: Vec<(&[u32], &[u32])> = vec![(&odd, &following[0]), (&few, &following[1]), (&one, &following[2])];
    all.resize(thinking as usize, (&[], &[]));
    let (ending, after_it) = ([ends], [0, thinking]);
    all.push((&ending, &after_it));
    let (first, second) = (words(&[(&[8], &[0])]), words(&all));
    let (other, trie) = (TokenTrie { id: 4, data: &first }, TokenTrie { id: 5, data: &second });
    let plain = GpuLogitQuery { token: None, ..GpuLogitQuery::score(0, None) };
    let mut at_nodes = vec![GpuLogitQuery { candidates: Candidates::TrieNode(other, 0), ..plain }];
    let mut from_lists = vec![GpuLogitQuery { candidates: Candidates::List(&[8]), ..plain }];
    let lists = [Candidates::List(&odd), Candidates::List(&few), Candidates::List(&one), Candidates::All];
    for (list, node) in lists.into_iter().zip([0, 1, 2, thinking]) {
        for uniform in [0.0, 0.01, 0.3, 0.5, 0.77, 0.999_9] {
            let under = |candidates| {
                let plain = GpuLogitQuery { uniform, candidates, ..plain };
                filters(plain)
                    .into_iter()
                    .chain([GpuLogitQuery { temperature: 0.0, ..plain }, GpuLogitQuery { top_k: 3, ..plain }])
            };
            at_nodes.extend(under(Candidates::TrieNode(trie, node)));
            from_lists.extend(under(list));
        }
    }
    let rows = at_nodes.len();
    // In some rows the token that ends thinking is by far the likeliest, in some it is out of the question.
    let mut logits: Vec<f32> = numbers(rows * stride, 13).iter().map(|x| (8.0 * x * x * x) as f32).collect();
    (0..rows).for_each(|row| logits[row * stride + ends as usize] = if row % 2 == 0 { 30.0 } else { -30.0 });
    let (bl, f, s) = (b.put(&logits), &b.model.program.functions, &b.stream);
    let mut tries = DeviceTries::new(b.model.device(), 16).unwrap();
    assert!(tries.find(s, &at_nodes, v).unwrap(), "there was room for so many");
    let answers = |asks: &[GpuLogitQuery<'_>]| {
        let mut packet = GpuStepInputs::default();
        let at = packet.leave(rows * ASK);
        asks.iter().enumerate().for_each(|(i, ask)| packet.ask(at, i, ask, tries.node(i)));
        let (words, answers) = (b.put(&packet.words), b.put(&vec![GpuLogitResult::default(); rows]));
        let given = args![bl.at(0), stride as u64, v, words.at(0), tries.on_card(), at, answers.at(0)];
        s.launch(f.answer, (rows, 1, 1), READERS, 0, given).unwrap();
        s.wait().unwrap();
        answers.to_vec().unwrap()
    };
    let bits = |a: &GpuLogitResult| (a.token, a.logprob.to_bits(), a.aux.to_bits());
    let (mut ended, mut went_on) = (0, 0);
    for (i, (at_node, from_list)) in answers(&at_nodes).iter().zip(answers(&from_lists)).enumerate() {
        assert_eq!((bits(at_node), from_list.next_node()), (bits(&from_list), None), "row {i}, {:?}", from_lists[i]);
        let Candidates::TrieNode(_, node) = at_nodes[i].candidates else { panic!("row {i} names no node") };
        let place = |tokens: &[u32]| tokens.binary_search(&at_node.token).unwrap();
        let want = match node {
            _ if i == 0 => 0,
            0 => following[0][place(&odd)],
            1 => following[1][place(&few)],
            2 => following[2][place(&one)],
            _ if at_node.token == ends => 0,
            _ => thinking,
        };
        if node == thinking {
            *(if want == 0 { &mut ended } else { &mut went_on }) += 1;
        }
        assert_eq!(at_node.next_node(), Some(want), "row {i}, token {}", at_node.token);
    }
    assert!(ended > 10 && went_on > 10, "thinking ended {ended} times and went on {went_on} times");
}
