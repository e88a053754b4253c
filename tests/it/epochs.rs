//! Helpers for tests of epochs: random inputs, layouts and chains of runs, and a simplest reader, with which the real
//! one is compared.

use proptest::prelude::*;
use tensorquery::ErrorKind;
use tensorquery::sharding::{
    Builtin, EarlierRun, Interleave, Lane, Layout, Left, Mixing, OrderKey, Remainder, Rng,
    RowSlice, Shard, ShardInput, Source, blend, left_after, resume,
};

/// A split and an output row of it.
pub type Row = (u32, u64);

/// The rows of `piece` in its order, of splits that truly have `counts` rows.
pub fn piece_rows(piece: &RowSlice, counts: &[u64]) -> Vec<Row> {
    match &piece.source {
        Source::Split(id) => {
            let end = piece.end.unwrap_or(counts[*id as usize]);
            (piece.start..end).map(|row| (*id, row)).collect()
        }
        Source::Window(window) => {
            let mut rows = merged(&window.pieces, &window.from, counts);
            assert!(rows.len() as u64 >= window.rows, "a window of {} rows", rows.len());
            rows.truncate(window.rows as usize);
            Rng::new(window.key).shuffle(&mut rows);
            let end = piece.end.unwrap_or(window.rows);
            rows[piece.start as usize..end as usize].to_vec()
        }
    }
}

/// The rows of `pieces` row by row, as `from` says whose turn it is.
fn merged(pieces: &[RowSlice], from: &Interleave, counts: &[u64]) -> Vec<Row> {
    let rows: Vec<Vec<Row>> = pieces.iter().map(|piece| piece_rows(piece, counts)).collect();
    let (mut state, all) = (from.clone(), pieces.len() as u32);
    let mut found = Vec::new();
    while let Some(turn) = state.turn(all) {
        match rows[turn.piece as usize].get(turn.row as usize) {
            Some(row) => {
                found.push(*row);
                state.took(1);
            }
            None => state.ended(all),
        }
    }
    found
}

/// The rows of a lane in the order in which they are delivered.
pub fn lane_rows(lane: &Lane, counts: &[u64]) -> Vec<Row> {
    let rests: Vec<Row> = lane.rests.iter().flat_map(|rest| piece_rows(rest, counts)).collect();
    let mut rows = merged(&lane.pieces, &lane.mixing.start(), counts);
    if let Some(window) = lane.mixing.window {
        for (number, window) in (0_u64..).zip(rows.chunks_mut(window as usize)) {
            Rng::new(lane.window_key(number)).shuffle(window);
        }
    }
    [rests, rows].concat()
}

/// A batch: its rows; the last `padded` are repeated ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub rows: Vec<Row>,
    pub padded: usize,
}

/// All batches of a shard.
pub fn batches(shard: &Shard, counts: &[u64]) -> Vec<Batch> {
    let lanes: Vec<Vec<Row>> = shard.lanes.iter().map(|lane| lane_rows(lane, counts)).collect();
    let mut left: Vec<u64> = lanes.iter().map(|rows| rows.len() as u64).collect();
    let padding: Vec<Row> =
        shard.padding.iter().flat_map(|piece| piece_rows(piece, counts)).collect();
    let mut found = Vec::new();
    while let Some(size) = shard.schedule.size(found.len() as u64) {
        let shares = blend(size, &left, &shard.weights_at(found.len() as u64));
        let mut rows: Vec<Row> = Vec::new();
        for ((lane, left), share) in lanes.iter().zip(&mut left).zip(shares) {
            let start = lane.len() - *left as usize;
            rows.extend(&lane[start..start + share as usize]);
            *left -= share;
        }
        let missing = size as usize - rows.len();
        if missing > 0 {
            let fixed = shard.schedule.batches().is_some();
            assert!(!fixed || shard.schedule.pad, "{missing} rows are missing: {shard:?}");
            if !fixed && (rows.is_empty() || shard.schedule.drop_short) {
                break;
            }
        }
        let padded = if shard.schedule.pad { missing } else { 0 };
        assert!(padded == 0 || !padding.is_empty(), "no rows to repeat: {shard:?}");
        rows.extend(padding.iter().cycle().take(padded));
        found.push(Batch { rows, padded });
    }
    found
}

/// How many shuffle windows are among what is left, and how many ranges of them and of splits.
pub fn size_of(left: &Left) -> (usize, usize) {
    let (rests, _): (Vec<&RowSlice>, Vec<_>) =
        left.pieces().iter().partition(|piece| piece.is_rest());
    (rests.chunk_by(|a, b| a.source == b.source).count(), left.pieces().len())
}

/// How far the shards of a run were consumed.
#[derive(Clone, Debug)]
pub enum Consumed {
    /// All ranks took equally many batches.
    Step(u16),
    /// Each shard was consumed on its own; numbers are reused from the start.
    Each(Vec<u16>),
}

/// An epoch that is interrupted and resumed.
#[derive(Clone, Debug)]
pub struct Case {
    /// With counts.
    pub input: ShardInput,
    /// Those before the last are interrupted.
    pub layouts: Vec<(Layout, Consumed)>,
    /// Where a custom strategy deals the first run: a number by split.
    pub lists: Option<Vec<u16>>,
    pub seed: u64,
}

/// A chain of runs, and what the last one reads.
#[derive(Debug)]
pub struct Chain {
    pub runs: Vec<EarlierRun>,
    /// Rows that the runs delivered, without repeated ones.
    pub consumed: Vec<Row>,
    pub layout: Layout,
    pub shards: Vec<Shard>,
}

impl Case {
    pub fn counts(&self) -> &[u64] {
        self.input.counts.as_deref().unwrap()
    }

    pub fn key(&self) -> OrderKey<'_> {
        OrderKey { seed: self.seed, epoch: 3, fingerprint: b"fingerprint" }
    }

    /// All rows that are not excluded.
    pub fn rows(&self) -> Vec<Row> {
        let excluded = |split, row| {
            let hit = |gap: &&(u32, u64, u64)| gap.0 == split && (gap.1..gap.2).contains(&row);
            self.input.exclude.iter().any(|gap| hit(&gap))
        };
        (0..)
            .zip(self.counts())
            .flat_map(|(split, rows)| (0..*rows).map(move |row| (split, row)))
            .filter(|(split, row)| !excluded(*split, *row))
            .collect()
    }

    /// The splits of each shard of the first run, where a custom strategy deals.
    pub fn lists(&self, layout: &Layout) -> Option<Vec<Vec<u32>>> {
        let numbers = self.lists.as_ref()?;
        let shards = (layout.world_size * layout.num_workers.max(1)) as usize;
        let mut lists = vec![Vec::new(); shards];
        for split in (0..self.input.weights.len()).rev() {
            lists[numbers[split % numbers.len()] as usize % shards].push(split as u32);
        }
        Some(lists)
    }

    /// The shards of `layout` after `runs`.
    pub fn resume(&self, runs: &[EarlierRun], layout: &Layout) -> tensorquery::Result<Vec<Shard>> {
        self.resume_of(&self.input, runs, layout)
    }

    pub fn resume_of(
        &self,
        input: &ShardInput,
        runs: &[EarlierRun],
        layout: &Layout,
    ) -> tensorquery::Result<Vec<Shard>> {
        let left = self.left_of(input, runs)?;
        resume(input, left.as_ref(), layout, self.lists(layout).as_deref(), self.key())
    }

    /// What is left after `runs`, as the state between each two of them says it.
    pub fn left_of(
        &self,
        input: &ShardInput,
        runs: &[EarlierRun],
    ) -> tensorquery::Result<Option<Left>> {
        let mut left: Option<Left> = None;
        for run in runs {
            let lists = self.lists(&run.layout);
            let after = left_after(input, left.as_ref(), run, lists.as_deref(), self.key())?;
            let read = Left::decode(&after.encode(), input)?;
            assert_eq!(read.encode(), after.encode());
            assert_eq!(read.pieces().len(), after.pieces().len());
            left = Some(read);
        }
        Ok(left)
    }

    /// Runs one layout after the other. A layout for which equal steps are impossible is left out; the last
    /// one then is made uneven.
    pub fn play(&self) -> Chain {
        let (mut runs, mut consumed) = (Vec::new(), Vec::new());
        let ((last, _), before) = self.layouts.split_last().unwrap();
        for (layout, how) in before {
            let Some(shards) = self.possible(&runs, layout) else { continue };
            let (run, rows) = self.interrupt(layout, &shards, how);
            runs.push(run);
            consumed.extend(rows);
        }
        let mut layout = last.clone();
        let shards = self.possible(&runs, &layout).unwrap_or_else(|| {
            layout = Layout { remainder: Remainder::Uneven, counted: false, ..layout.clone() };
            layout.partitions = None;
            self.resume(&runs, &layout).unwrap()
        });
        Chain { runs, consumed, layout, shards }
    }

    fn possible(&self, runs: &[EarlierRun], layout: &Layout) -> Option<Vec<Shard>> {
        match self.resume(runs, layout) {
            Ok(shards) => Some(shards),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(is_exact(layout) && layout.remainder == Remainder::Even, "{error}");
                None
            }
        }
    }

    fn interrupt(
        &self,
        layout: &Layout,
        shards: &[Shard],
        how: &Consumed,
    ) -> (EarlierRun, Vec<Row>) {
        let per_rank = shards.len() / layout.world_size as usize;
        let all: Vec<Vec<Batch>> =
            shards.iter().map(|shard| batches(shard, self.counts())).collect();
        for (shard, batches) in shards.iter().zip(&all) {
            assert_eq!(shard.batches(), Some(batches.len() as u64), "{shard:?}");
        }
        let mut run = EarlierRun { layout: layout.clone(), step: 0, cursors: Default::default() };
        let taken: Vec<usize> = match how {
            Consumed::Step(number) if is_exact(layout) => {
                let steps: usize = all[..per_rank].iter().map(Vec::len).sum();
                let step = *number as usize % (steps + 1);
                run.step = step as u64;
                (0..shards.len()).map(|at| batch_of(step, per_rank, at % per_rank)).collect()
            }
            how => {
                let number = |at: usize| match how {
                    Consumed::Step(number) => *number as usize + at,
                    Consumed::Each(numbers) => numbers[at % numbers.len()] as usize,
                };
                let taken: Vec<usize> =
                    (0..shards.len()).map(|at| number(at) % (all[at].len() + 1)).collect();
                for (rank, own) in shards.chunks(per_rank).enumerate() {
                    let cursors = own.iter().enumerate().map(|(worker, shard)| {
                        match taken[rank * per_rank + worker] {
                            0 => Vec::new(),
                            batches => shard.cursor_at(batches as u64).encode(),
                        }
                    });
                    run.cursors.insert(rank as u32, cursors.collect());
                }
                taken
            }
        };
        let rows = all.iter().zip(taken).flat_map(|(batches, taken)| {
            batches[..taken].iter().flat_map(|batch| &batch.rows[..batch.rows.len() - batch.padded])
        });
        (run, rows.copied().collect())
    }
}

/// The batches of worker `worker` of `workers` among the first `step` of its rank.
pub fn batch_of(step: usize, workers: usize, worker: usize) -> usize {
    (0..step).filter(|batch| batch % workers == worker).count()
}

/// Whether every shard has its exact number of rows.
pub fn is_exact(layout: &Layout) -> bool {
    layout.counted && layout.remainder != Remainder::Uneven
}

fn input() -> impl Strategy<Value = ShardInput> {
    let split = (0_u64..30, 0_u64..100, 0_u32..3);
    let source_weights = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(1_u64..6, 2..4),
    ];
    let exclude = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec((0_u32..12, 0_u64..30, 0_u64..12), 1..4),
    ];
    (prop::collection::vec(split, 1..10), source_weights, any::<bool>(), exclude).prop_map(
        |(splits, source_weights, stop_first, exclude)| {
            let counts: Vec<u64> = splits.iter().map(|split| split.0).collect();
            let sources = source_weights.len() as u32;
            let gap = |(split, start, rows): (u32, u64, u64)| {
                let split = split % counts.len() as u32;
                let start = start.min(counts[split as usize]);
                (split, start, (start + rows).min(counts[split as usize]))
            };
            ShardInput {
                weights: splits.iter().map(|split| split.1).collect(),
                sources: match sources {
                    0 => Vec::new(),
                    _ => splits.iter().map(|split| split.2 % sources).collect(),
                },
                source_weights,
                stop_first: stop_first && sources > 0,
                exclude: exclude.into_iter().map(gap).collect(),
                counts: Some(counts),
                ..ShardInput::default()
            }
        },
    )
}

pub fn mixing() -> impl Strategy<Value = Mixing> {
    let chunk = prop_oneof![2 => 1_u64..5, 1 => Just(u64::MAX)];
    let window = prop_oneof![1 => Just(None), 2 => (2_u64..25).prop_map(Some)];
    (1_u32..4, chunk, window).prop_map(|(width, chunk, window)| Mixing { width, chunk, window })
}

/// A layout that the Python half can ask for.
fn layout() -> impl Strategy<Value = Layout> {
    let remainder = prop::sample::select(vec![
        Remainder::Even,
        Remainder::Even,
        Remainder::Drop,
        Remainder::Pad,
        Remainder::Uneven,
    ]);
    let partitions = prop::option::weighted(0.2, 1_u32..4);
    let strategy = prop::sample::select(vec![Builtin::Lpt, Builtin::RoundRobin]);
    let sizes = (1_u32..5, 0_u32..4, 1_u64..9);
    (sizes, remainder, any::<bool>(), partitions, strategy, any::<bool>(), mixing()).prop_map(
        |(
            (world_size, num_workers, batch_size),
            remainder,
            counts,
            several,
            strategy,
            shuffle,
            mixing,
        )| {
            let mut layout = Layout {
                world_size,
                num_workers,
                batch_size,
                remainder,
                dynamic: false,
                counted: remainder != Remainder::Uneven && (counts || world_size > 1),
                partitions: None,
                strategy: Some(strategy),
                shuffle,
                permuted: None,
                refills: false,
                mixing,
            };
            match several {
                Some(each) if remainder != Remainder::Uneven => {
                    layout.partitions = Some(each * world_size);
                    layout.batch_size *= u64::from(each);
                    layout.num_workers = 0;
                    layout.counted = true;
                }
                _ => (),
            }
            // Several workers drop or repeat the rows of one batch only where rows are counted.
            if !layout.counted && matches!(remainder, Remainder::Drop | Remainder::Pad) {
                layout.num_workers = layout.num_workers.min(1);
            }
            layout
        },
    )
}

fn consumed() -> impl Strategy<Value = Consumed> {
    prop_oneof![
        any::<u16>().prop_map(Consumed::Step),
        prop::collection::vec(any::<u16>(), 1..8).prop_map(Consumed::Each),
    ]
}

/// Epochs of `runs` runs, of which each takes a few batches: so that most of them are resumed to the end.
pub fn long_cases(runs: usize) -> impl Strategy<Value = Case> {
    let run = (layout(), 0_u16..3);
    let splits = prop::collection::vec(40_u64..120, 4..12);
    (splits, prop::collection::vec(run, runs), any::<u64>()).prop_map(|(counts, runs, seed)| {
        let one_of = |(mut layout, step): (Layout, u16)| {
            (layout.batch_size, layout.partitions) = (2 + layout.batch_size % 3, None);
            let each = (0..24).map(|shard| step * (shard % 3)).collect();
            let how = if is_exact(&layout) { Consumed::Step(step) } else { Consumed::Each(each) };
            (layout, how)
        };
        let (weights, counts) = (counts.clone(), Some(counts));
        let input = ShardInput { weights, counts, ..ShardInput::default() };
        Case { input, layouts: runs.into_iter().map(one_of).collect(), lists: None, seed }
    })
}

/// Epochs of one to `most` runs.
pub fn cases(most: usize) -> impl Strategy<Value = Case> {
    let runs = prop::collection::vec((layout(), consumed()), 1..=most);
    let lists = prop::option::weighted(0.2, prop::collection::vec(any::<u16>(), 1..8));
    (input(), runs, lists, any::<u64>()).prop_map(|(input, mut layouts, lists, seed)| {
        for (layout, _) in &mut layouts {
            if !input.source_weights.is_empty() {
                layout.partitions = None;
            }
            if lists.is_some() {
                layout.strategy = None;
                layout.partitions = None;
            }
        }
        Case { input, layouts, lists, seed }
    })
}
