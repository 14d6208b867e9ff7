#!/usr/bin/env python3
"""Sokoban: rooms and steps per second, compared with the reference's rules in Python.

The reference (MAGE's and RAGEN's Sokoban) is a layer over the package gym-sokoban: its own generator, a breadth-first search for a
shortest solution, and that search after every step. This file reimplements those rules on gym-sokoban, creates a plan (rooms by seed,
random actions in each), and times itself and `cargo run --release -p mage-env --example sokoban_speed` on it. A checksum over all
observations, rewards and flags shows that both sides did the same work.

    python3 benches/peers/sokoban_reference.py [--rooms 150] [--boxes 2] [--check RECORDINGS] [--json]

Creates a virtual environment next to this file (ignored by git) and installs gym-sokoban. With --check, rooms and steps are first
compared with recordings of the reference itself (JSON lines, gzipped or not). Exits with 1 if the checksums differ, if steps are less
than 1,000 times as fast, or if rooms are less than 200 times as fast.
"""

import argparse
import gzip
import json
import marshal
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections import deque

import own_venv

if __name__ == "__main__":
    own_venv.enter("sokoban", "gym_sokoban", "gym-sokoban==0.0.6")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
from gym_sokoban.envs.sokoban_env import SokobanEnv  # noqa: E402

WALL, FLOOR, TARGET, BOX_ON, BOX, PLAYER = range(6)
SYMBOLS = "#_O√XPS"
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
MIN_RATIOS = {"rooms_per_s": 200, "steps_per_s": 1000}
MASKS = [
    np.array(m)
    for m in (
        [[0, 0, 0], [1, 1, 1], [0, 0, 0]],
        [[0, 1, 0], [0, 1, 0], [0, 1, 0]],
        [[0, 0, 0], [1, 1, 0], [0, 1, 0]],
        [[0, 0, 0], [1, 1, 0], [1, 1, 0]],
        [[0, 0, 0], [0, 1, 1], [0, 1, 0]],
    )
]


class RoomGenerationFailed(Exception):
    """The seed yields no room; the reference would retry with a seed that differs between processes."""


def shortest(fixed, state, max_moves):
    """Breadth-first search for a shortest solution, as actions 1 to 4; empty if there is none within `max_moves`."""
    queue = deque([(state, [])])
    seen = set()
    rows, cols = fixed.shape
    while queue:
        state, path = queue.popleft()
        if len(path) > max_moves:
            return []
        key = marshal.dumps(state)
        if key in seen:
            continue
        seen.add(key)
        if not (state == BOX).any():
            return path
        row, col = (int(axis[0]) for axis in np.where(state == PLAYER))
        for action, (down, right) in enumerate(MOVES, 1):
            r, c = row + down, col + right
            if not (0 <= r < rows and 0 <= c < cols) or fixed[r, c] == WALL:
                continue
            pushed = state[r, c] in (BOX, BOX_ON)
            if pushed:
                to = r + down, c + right
                if not (0 <= to[0] < rows and 0 <= to[1] < cols) or state[to] not in (FLOOR, TARGET):
                    continue
            after = state.copy()
            if pushed:
                after[to] = BOX_ON if fixed[to] == TARGET else BOX
            after[row, col] = fixed[row, col]
            after[r, c] = PLAYER
            queue.append((after, path + [action]))
    return []


def carve_floor(rows, cols):
    """A floor carved by a random walk."""
    directions = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    direction = random.sample(directions, 1)[0]
    at = np.array([random.randint(1, rows - 1), random.randint(1, cols - 1)])
    level = np.zeros((rows, cols), dtype=int)
    for _ in range(int(1.7 * (rows + cols))):
        if random.random() < 0.35:
            direction = random.sample(directions, 1)[0]
        at = np.clip(at + direction, 1, (rows - 2, cols - 2))
        mask = random.sample(MASKS, 1)[0]
        level[at[0] - 1 : at[0] + 2, at[1] - 1 : at[1] + 2] += mask
    level = (level > 0).astype(int)
    level[[0, -1], :] = WALL
    level[:, [0, -1]] = WALL
    return level


def place_objects(room, boxes):
    """The player, then the targets, each on a random free floor cell."""
    if (room == FLOOR).sum() <= boxes + 1:
        raise RoomGenerationFailed
    for cell in [PLAYER] + [TARGET] * boxes:
        free = np.where(room == FLOOR)
        pick = np.random.randint(free[0].shape[0])
        room[free[0][pick], free[1][pick]] = cell


class ReversePlay:
    """Depth-first search that pulls boxes off their targets and keeps the best state."""

    def __init__(self, fixed, boxes):
        self.fixed, self.boxes = fixed, boxes
        self.seen = set()
        self.best_score, self.best, self.best_box_of_target = -1, None, None

    def distance(self, box_of_target):
        return sum(abs(t[0] - b[0]) + abs(t[1] - b[1]) for t, b in box_of_target.items())

    def search(self, state, box_of_target, swaps, last, depth):
        depth -= 1
        if depth <= 0 or len(self.seen) >= 300_000:
            return
        key = marshal.dumps(state)
        if key in self.seen:
            return
        self.seen.add(key)
        score = swaps * self.distance(box_of_target) if (state == TARGET).sum() == self.boxes else 0
        if score > self.best_score:
            self.best_score, self.best, self.best_box_of_target = score, state, box_of_target
        row, col = (int(axis[0]) for axis in np.where(state == PLAYER))
        for down, right in MOVES:
            r, c = row + down, col + right
            if state[r, c] not in (FLOOR, TARGET):
                continue
            after, after_box_of_target, pulled = state.copy(), box_of_target, last
            after[row, col] = self.fixed[row, col]
            after[r, c] = PLAYER
            behind = row - down, col - right
            if state[behind] in (BOX, BOX_ON):
                # A pulled box is marked BOX_ON on any cell, so states also encode which boxes were ever pulled.
                after[row, col] = BOX_ON
                after[behind] = self.fixed[behind]
                pulled = next(t for t, b in box_of_target.items() if b == behind)
                after_box_of_target = {**box_of_target, pulled: (row, col)}
            self.search(after, after_box_of_target, swaps + (pulled != last), pulled, depth)


def move_player(state, fixed, probability):
    """One to three steps of the player, without reversal."""
    if random.random() > probability:
        return
    row, col = (int(axis[0]) for axis in np.where(state == PLAYER))
    visited = [(row, col)]
    for step in range(1, 4):
        free = [(row + d, col + r) for d, r in MOVES]
        free = [n for n in free if state[n] in (FLOOR, TARGET) and n not in visited]
        if not free:
            return
        to = random.choice(free)
        state[row, col] = fixed[row, col]
        state[to] = PLAYER
        row, col = to
        visited.append(to)
        if step == 3 or random.random() > 0.5:
            return


def room(dim, boxes, depth):
    """The fixed cells and the initial state of a room."""
    for _ in range(4):
        fixed = carve_floor(*dim)
        place_objects(fixed, boxes)
        state = fixed.copy()
        state[state == TARGET] = BOX
        fixed[fixed == PLAYER] = FLOOR
        box_of_target = {(int(r), int(c)): (int(r), int(c)) for r, c in zip(*np.where(fixed == TARGET))}
        reverse_play = ReversePlay(fixed, boxes)
        reverse_play.search(state, box_of_target, 0, None, depth)
        distance = reverse_play.distance(reverse_play.best_box_of_target)
        if distance > 0:
            state = reverse_play.best.copy()
            state[state == BOX_ON] = BOX
            move_player(state, fixed, 0.8 if distance == 1 else 0.5)
            return fixed, state
    raise RoomGenerationFailed


class Reference(SokobanEnv):
    """gym-sokoban's moves and rewards, with the reference's rooms and its search after every step."""

    def __init__(self, dim, boxes, depth, max_steps, window):
        super().__init__(dim_room=dim, max_steps=max_steps, num_boxes=boxes, reset=False)
        self.depth, self.window = depth, window

    def reset(self, seed):
        random.seed(seed)
        np.random.seed(seed)
        for _ in range(10):
            self.room_fixed, self.room_state = room(self.dim_room, self.num_boxes, self.depth)
            length = len(shortest(self.room_fixed, self.room_state, self.depth))
            if self.window[0] <= length <= self.window[1]:
                break
        self.reset_counters()

    def reset_counters(self):
        self.player_position = np.argwhere(self.room_state == PLAYER)[0]
        self.num_env_steps = self.reward_last = self.boxes_on_target = 0

    def render(self, mode="rows", **_):
        if mode == "tiny_rgb_array":
            return super().render(mode)
        shown = np.where((self.room_state == PLAYER) & (self.room_fixed == TARGET), 6, self.room_state).tolist()
        if mode == "tabs":
            return "\n".join("".join(f" {SYMBOLS[c]} \t" for c in row) for row in shown)
        return "\n".join(f"{i}:" + "".join(f" {SYMBOLS[c]}" for c in row) for i, row in enumerate(shown))

    def play(self, action, mode="rows"):
        if action == 0:
            return self.render(mode), -0.1, False, False
        _, reward, done, _ = self.step(action, observation_mode="tiny_rgb_array")
        if not done:
            done = not shortest(self.room_fixed, self.room_state, self.depth)
        return self.render(mode), float(reward), done, self.boxes_on_target == self.num_boxes


def check(path):
    """Compares rooms and steps with recordings of the reference itself."""
    opener = gzip.open if path.endswith(".gz") else open
    rooms = steps = 0
    for line in opener(path, "rt", encoding="utf-8"):
        r = json.loads(line)
        env = Reference(tuple(r["dim"]), r["boxes"], r["search_depth"], r["max_steps"], (3, 15))
        if not r["retried_with_hash_seed"]:
            env.reset(r["seed"])
            assert env.room_state.tolist() == r["room_state"], r["seed"]
            assert env.room_fixed.tolist() == r["room_fixed"], r["seed"]
            rooms += 1
        env.room_fixed, env.room_state = np.array(r["room_fixed"]), np.array(r["room_state"])
        env.reset_counters()
        for action, view, reward, done, _, won in r["steps"]:
            assert env.play(action, "tabs") == (view, reward, done, won), (r["seed"], action)
            steps += 1
    print(f"the Python side equals the recordings: {rooms} rooms, {steps} steps", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", type=int, default=150)
    parser.add_argument("--boxes", type=int, default=2)
    parser.add_argument("--moves", type=int, default=21, help="maximum actions per room")
    parser.add_argument("--repeat", type=int, default=200, help="repetitions of mage")
    parser.add_argument("--check", metavar="RECORDINGS", help="recordings of the reference to compare with first")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of the table")
    args = parser.parse_args()
    sys.setrecursionlimit(10_000)
    if args.check:
        check(args.check)

    plan = dict(rows=6, cols=6, boxes=args.boxes, search_depth=100, max_steps=30, min_steps=5, max_sol_steps=21)
    env = Reference((6, 6), args.boxes, 100, 30, (5, 21))
    episodes, starts = [], []
    room_time, seed = 0.0, 0
    while len(episodes) < args.rooms:
        try:
            clock = time.perf_counter()
            env.reset(seed)
            room_time += time.perf_counter() - clock
            episodes.append({"seed": seed, "actions": []})
            starts.append((env.room_fixed, env.room_state))
        except RoomGenerationFailed:
            pass
        seed += 1

    rng, crc, step_time, steps = random.Random(0), 0, 0.0, 0
    for episode, (fixed, state) in zip(episodes, starts):
        env.room_fixed, env.room_state = fixed, state.copy()
        env.reset_counters()
        for _ in range(args.moves):
            action = rng.randint(1, 4)
            clock = time.perf_counter()
            view, reward, done, won = env.play(action)
            step_time += time.perf_counter() - clock
            episode["actions"].append(action)
            steps += 1
            crc = zlib.crc32(f"{view}{reward:.1f} {str(done).lower()} {str(bool(won)).lower()}".encode(), crc)
            if done:
                break

    plan.update(repeat=args.repeat, episodes=episodes)
    root = pathlib.Path(__file__).resolve().parents[2]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        command = ["cargo", "run", "--release", "--quiet", "-p", "mage-env", "--example", "sokoban_speed", "--", file.name]
        ours = json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)
    theirs = {"rooms_per_s": len(episodes) / room_time, "steps_per_s": steps / step_time}
    if ours["checksum"] != f"{crc:08x}":
        sys.exit(f"the checksums differ: {ours['checksum']} (mage), {crc:08x} (Python)")
    ratios = {key: ours[key] / theirs[key] for key in MIN_RATIOS}
    if args.json:
        print(json.dumps({"mage": ours, "python": theirs, "ratios": ratios, "min_ratios": MIN_RATIOS}))
    else:
        table(episodes, steps, crc, ours, theirs, ratios)
    sys.exit(0 if all(ratios[key] >= min_ratio for key, min_ratio in MIN_RATIOS.items()) else 1)


def table(episodes, steps, crc, ours, theirs, ratios):
    print(f"{len(episodes)} rooms, {steps} steps, equal observations, rewards and flags (checksum {crc:08x})")
    print(f"{'':34}{'Python':>12}{'mage':>14}{'ratio':>10}")
    rows = [("rooms/s", "rooms_per_s"), ("steps/s with solvability and text", "steps_per_s")]
    for name, key in rows:
        print(f"{name:34}{theirs[key]:12.1f}{ours[key]:14.0f}{ratios[key]:9.0f}×")
    print(f"required ratios: rooms {MIN_RATIOS['rooms_per_s']}×, steps {MIN_RATIOS['steps_per_s']}×")


if __name__ == "__main__":
    main()
