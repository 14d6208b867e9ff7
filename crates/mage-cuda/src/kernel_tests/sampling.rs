//! Tests of sampling, token log-probabilities and their gradients.

use super::{KernelFixture, assert_near, numeric_grad, random_bf16};
use crate::step_inputs::{Candidates, KernelLogitQuery, LOGIT_THREADS, QUERY_WORDS, StepInputs};
use crate::stream::args;
use crate::token_trie::{DeviceTries, TokenTrie, tests::trie_words};
use mage_engine::model::LogitResult;

/// Log-probability and entropy of a token among candidates.
fn logprob_and_entropy(logits: &[f64], candidates: &[u32], token: u32) -> (f64, f64) {
    let max_logit = candidates.iter().map(|c| logits[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let sum = candidates.iter().map(|c| (logits[*c as usize] - max_logit).exp()).sum::<f64>().ln() + max_logit;
    let entropy = candidates.iter().map(|c| logits[*c as usize] - sum).map(|l| -l * l.exp()).sum();
    (logits[token as usize] - sum, entropy)
}

pub(crate) fn scores_samples_and_gradients_match_plain_loops() {
    let b = KernelFixture::new(16, 2, 1);
    let (v, stride) = (b.shape.vocab_size, b.shape.logits_stride());
    let rows = 4;
    let logits: Vec<f64> = random_bf16(rows * stride, 5).iter().map(|x| 3.0 * x).collect();
    let all: Vec<u32> = (0..v as u32).collect();
    let subset: Vec<u32> = vec![3, 17, 40, 41, 200, 300];
    let candidates = [&all, &subset, &all, &subset];
    let tokens = [7, 41, 300, 3];
    let (mut step_inputs, f, s) = (StepInputs::default(), &b.model.kernels.common, &b.stream);
    let scores_at = step_inputs.push_zeros(rows * QUERY_WORDS);
    let samples_at = step_inputs.push_zeros(rows * QUERY_WORDS);
    for (i, token) in tokens.into_iter().enumerate() {
        let allowed = (i % 2 == 1).then_some(&subset[..]);
        step_inputs.set_query(scores_at, i, &KernelLogitQuery::score(token, allowed), 0);
        // Greedy, then sampling with every filter at once.
        let greedy = KernelLogitQuery { token: None, temperature: 0.0, ..KernelLogitQuery::score(0, allowed) };

        let drawn = KernelLogitQuery {
            token: None,
            top_k: 5,
            temperature: 1.5,
            top_p: 0.9,
            min_p: 0.01,
            uniform: 0.4,
            candidates: Candidates::from_list(allowed),
        };
        step_inputs.set_query(samples_at, i, if i < 2 { &greedy } else { &drawn }, 0);
    }
    let inputs = b.upload(&step_inputs.data);
    let bl = b.upload(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>());
    let (token_stats, grads_device) = (b.upload(&vec![[0_f32; 4]; rows]), b.upload(&[[0.7_f32, -0.3]; 4]));
    let (results, gradient) = (b.upload(&vec![LogitResult::default(); rows]), b.nan_bf16(rows * stride));
    let common = (bl.at(0), stride as u64, v, inputs.at(0));
    let (l, st, vo, w) = common;
    s.launch(f.token_logprobs, (rows, 1, 1), LOGIT_THREADS, 0, args![l, st, vo, w, scores_at, token_stats.at(0)])
        .unwrap();
    s.launch(
        f.token_logprobs_grad,
        (rows, 1, 1),
        1024,
        0,
        args![l, st, vo, w, scores_at, token_stats.at(0), grads_device.at(0), gradient.at(0)],
    )
    .unwrap();
    s.launch(f.sample_or_score, (rows, 1, 1), LOGIT_THREADS, 0, args![l, st, vo, w, 0_u64, samples_at, results.at(0)])
        .unwrap();
    s.wait().unwrap();
    let (actual, gradient, results) =
        (token_stats.to_vec().unwrap(), b.read_bf16(&gradient), results.to_vec().unwrap());
    for i in 0..rows {
        let row = &logits[i * stride..][..v];
        let (logprob, entropy) = logprob_and_entropy(row, candidates[i], tokens[i]);
        assert_near(
            "logprob and entropy",
            &[f64::from(actual[i][0]), f64::from(actual[i][1])],
            &[logprob, entropy],
            1e-5,
        );
        let expected = numeric_grad(row, |row| {
            let (logprob, entropy) = logprob_and_entropy(row, candidates[i], tokens[i]);
            0.7 * logprob - 0.3 * entropy
        });
        assert_near("gradient", &gradient[i * stride..][..v], &expected, 0.005);
        let mut order = candidates[i].clone();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        let argmax = order[0];
        if i < 2 {
            assert_eq!(results[i].token, argmax);
        } else {
            assert!(order[..5].contains(&results[i].token), "{} was filtered out", results[i].token);
        }
        assert_near(
            "sampled",
            &[f64::from(results[i].logprob)],
            &[logprob_and_entropy(row, candidates[i], results[i].token).0],
            1e-5,
        );
    }
}

/// Weights of the filtered candidates at the query's temperature, ordered by token.
fn filtered(row: &[f64], candidates: &[u32], query: &KernelLogitQuery<'_>) -> Vec<(u32, f64)> {
    let max_logit = candidates.iter().map(|c| row[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |c: u32| ((row[c as usize] - max_logit) / f64::from(query.temperature)).exp();
    let mut order: Vec<(u32, f64)> = candidates.iter().map(|c| (*c, weight(*c))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if query.top_k > 0 {
        order.truncate(query.top_k as usize);
    }
    let enough = f64::from(query.top_p) * order.iter().map(|(_, w)| w).sum::<f64>();
    let mut sum = 0.0;
    order.retain(|(_, w)| {
        let stays = query.top_p >= 1.0 || sum < enough;
        sum += w;
        stays && *w >= f64::from(query.min_p)
    });
    order.sort_by_key(|(c, _)| *c);
    order
}

/// Queries with each filter, and with several.
fn filters(plain: KernelLogitQuery<'_>) -> [KernelLogitQuery<'_>; 6] {
    [
        plain,
        KernelLogitQuery { temperature: 0.3, ..plain },
        KernelLogitQuery { top_k: 300, ..plain },
        KernelLogitQuery { top_p: 0.7, temperature: 2.0, ..plain },
        KernelLogitQuery { min_p: 0.2, ..plain },
        KernelLogitQuery { top_k: 9000, top_p: 0.5, min_p: 0.1, temperature: 0.8, ..plain },
    ]
}

pub(crate) fn samples_follow_the_uniform_variate() {
    let b = KernelFixture::new(16, 2, 1);
    let (v, stride) = (20_011, 20_016);
    let odd: Vec<u32> = (0..v as u32).filter(|t| t % 2 == 1).collect();
    let plain = KernelLogitQuery { token: None, ..KernelLogitQuery::score(0, None) };
    let mut queries = Vec::new();
    for candidates in [Candidates::All, Candidates::List(&odd)] {
        for uniform in [0.0, 0.01, 0.3, 0.5, 0.77, 0.999_9] {
            queries.extend(filters(KernelLogitQuery { uniform, candidates, ..plain }));
        }
    }
    let rows = queries.len();
    // A skewed distribution: most of the mass is in few tokens.
    let logits: Vec<f64> = random_bf16(rows * stride, 9).iter().map(|x| f64::from((8.0 * x * x * x) as f32)).collect();
    let (mut step_inputs, f, s) = (StepInputs::default(), &b.model.kernels.common, &b.stream);
    let queries_at = step_inputs.push_zeros(rows * QUERY_WORDS);
    queries.iter().enumerate().for_each(|(i, query)| step_inputs.set_query(queries_at, i, query, 0));
    let (inputs, bl) = (b.upload(&step_inputs.data), b.upload(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>()));
    let results = b.upload(&vec![LogitResult::default(); rows]);
    let args = args![bl.at(0), stride as u64, v, inputs.at(0), 0_u64, queries_at, results.at(0)];
    s.launch(f.sample_or_score, (rows, 1, 1), LOGIT_THREADS, 0, args).unwrap();
    s.wait().unwrap();
    let all: Vec<u32> = (0..v as u32).collect();
    for (i, (result, query)) in results.to_vec().unwrap().iter().zip(&queries).enumerate() {
        let row = &logits[i * stride..][..v];
        let candidates = if query.candidates == Candidates::All { &all } else { &odd };
        let order = filtered(row, candidates, query);
        let total: f64 = order.iter().map(|(_, w)| w).sum();
        let index = order.iter().position(|(c, _)| *c == result.token);
        let index = index.unwrap_or_else(|| panic!("{query:?} sampled {}, which was filtered out", result.token));
        let before: f64 = order[..index].iter().map(|(_, w)| w).sum();
        let (target, tolerance) = (f64::from(query.uniform) * total, 1e-4 * total);
        let interval = before - tolerance..=before + order[index].1 + tolerance;
        assert!(interval.contains(&target), "row {i}, {query:?}: {target} is outside {interval:?} of {}", result.token);
        let (logprob, _) = logprob_and_entropy(row, candidates, result.token);
        let expected_aux = (order[index].1 / total).ln();
        assert_near("sampled", &[f64::from(result.logprob), f64::from(result.aux)], &[logprob, expected_aux], 1e-3);
    }
}

pub(crate) fn trie_sampling_equals_list_sampling_and_returns_the_next_node() {
    let b = KernelFixture::new(16, 2, 1);
    let (v, stride) = (20_011, 20_016);
    let odd: Vec<u32> = (0..v as u32).filter(|t| t % 2 == 1).collect();
    let (few, one) = ([3_u32, 17, 40, 41, 200, 300, 20_010], [12_u32]);
    // Any node may follow any other; next nodes only need to be distinguishable.
    let nodes = odd.len() as u32 + 4;
    let next_of = |tokens: &[u32], by: u32| tokens.iter().map(|t| (t * by + 1) % nodes).collect::<Vec<_>>();
    let next_nodes = [next_of(&odd, 7), next_of(&few, 11), next_of(&one, 3)];
    let (end_token, thinking_node) = (19_000, nodes - 1);
    let mut all: Vec<(&[u32], &[u32])> = vec![(&odd, &next_nodes[0]), (&few, &next_nodes[1]), (&one, &next_nodes[2])];
    all.resize(thinking_node as usize, (&[], &[]));
    let (ending, after_it) = ([end_token], [0, thinking_node]);
    all.push((&ending, &after_it));
    let (first, second_trie) = (trie_words(&[(&[8], &[0])]), trie_words(&all));
    let (other, trie) = (TokenTrie { id: 4, data: &first }, TokenTrie { id: 5, data: &second_trie });
    let plain = KernelLogitQuery { token: None, ..KernelLogitQuery::score(0, None) };
    let mut at_nodes = vec![KernelLogitQuery { candidates: Candidates::TrieNode(other, 0), ..plain }];
    let mut from_lists = vec![KernelLogitQuery { candidates: Candidates::List(&[8]), ..plain }];
    let lists = [Candidates::List(&odd), Candidates::List(&few), Candidates::List(&one), Candidates::All];
    for (list, node) in lists.into_iter().zip([0, 1, 2, thinking_node]) {
        for uniform in [0.0, 0.01, 0.3, 0.5, 0.77, 0.999_9] {
            let filtered_queries = |candidates| {
                let plain = KernelLogitQuery { uniform, candidates, ..plain };
                filters(plain)
                    .into_iter()
                    .chain([KernelLogitQuery { temperature: 0.0, ..plain }, KernelLogitQuery { top_k: 3, ..plain }])
            };
            at_nodes.extend(filtered_queries(Candidates::TrieNode(trie, node)));
            from_lists.extend(filtered_queries(list));
        }
    }
    let rows = at_nodes.len();
    // In half of the rows the end-of-thinking token is by far the most likely, in the others it is practically
    // impossible.
    let mut logits: Vec<f32> = random_bf16(rows * stride, 13).iter().map(|x| (8.0 * x * x * x) as f32).collect();
    (0..rows).for_each(|row| logits[row * stride + end_token as usize] = if row % 2 == 0 { 30.0 } else { -30.0 });
    let (bl, f, s) = (b.upload(&logits), &b.model.kernels.common, &b.stream);
    let mut tries = DeviceTries::new(b.model.device(), 16).unwrap();
    assert!(tries.resolve(s, &at_nodes, v).unwrap(), "the tries fit into the initial buffer");
    let results = |queries: &[KernelLogitQuery<'_>]| {
        let mut step_inputs = StepInputs::default();
        let queries_at = step_inputs.push_zeros(rows * QUERY_WORDS);
        queries
            .iter()
            .enumerate()
            .for_each(|(i, query)| step_inputs.set_query(queries_at, i, query, tries.node_offset(i)));
        let (inputs, results) = (b.upload(&step_inputs.data), b.upload(&vec![LogitResult::default(); rows]));
        let args = args![bl.at(0), stride as u64, v, inputs.at(0), tries.device_ptr(), queries_at, results.at(0)];
        s.launch(f.sample_or_score, (rows, 1, 1), LOGIT_THREADS, 0, args).unwrap();
        s.wait().unwrap();
        results.to_vec().unwrap()
    };
    let bits = |a: &LogitResult| (a.token, a.logprob.to_bits(), a.aux.to_bits());
    let (mut ended, mut continued) = (0, 0);
    for (i, (at_node, from_list)) in results(&at_nodes).iter().zip(results(&from_lists)).enumerate() {
        assert_eq!((bits(at_node), from_list.next_node()), (bits(&from_list), None), "row {i}, {:?}", from_lists[i]);
        let Candidates::TrieNode(_, node) = at_nodes[i].candidates else { panic!("row {i} has no trie node") };
        let index = |tokens: &[u32]| tokens.binary_search(&at_node.token).unwrap();
        let expected = match node {
            _ if i == 0 => 0,
            0 => next_nodes[0][index(&odd)],
            1 => next_nodes[1][index(&few)],
            2 => next_nodes[2][index(&one)],
            _ if at_node.token == end_token => 0,
            _ => thinking_node,
        };
        if node == thinking_node {
            *(if expected == 0 { &mut ended } else { &mut continued }) += 1;
        }
        assert_eq!(at_node.next_node(), Some(expected), "row {i}, token {}", at_node.token);
    }
    assert!(ended > 10 && continued > 10, "thinking ended {ended} times and continued {continued} times");
}
