//! Tests of environments, opponents and solvers.

mod alfworld_files;
mod alfworld_mutated;
mod alfworld_rules;
mod game_spec;
mod kuhn_ceilings;
mod kuhn_cfr;
mod kuhn_pass_at_k;
mod kuhn_support;
mod mcts_allocation;
mod playable;
mod sokoban_rooms;
mod sokoban_solver;
mod solvers_on_nim;
mod tictactoe_env;
mod tictactoe_strength;
mod webshop_generated;
