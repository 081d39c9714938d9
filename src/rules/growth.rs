//! How far a file grows ahead, and when. Values only; the engine owns them under its lock.
//!
//! Growth takes the inode lock exclusively and waits for every write in flight. So it happens
//! rarely, in large steps, and early: in a steady stream no append waits for it.

/// The first step. Each step takes the inode lock, and without an ordered journal costs a sync of
/// the file. So small steps would slow a fast writer. A small file frees the rest at close.
const STEP_FIRST_BYTES: u64 = 32 << 20;

/// The largest fraction of the free space in a step, unless an operation needs more.
const FREE_SPACE_FRACTION: u64 = 8;

/// How much all files of the process together may grow ahead by default: 2 GiB.
pub const BUDGET_DEFAULT_BYTES: u64 = if cfg!(test) { TEST_BUDGET_BYTES } else { 2 << 30 };

/// The unit tests share one process, run side by side, and leave files open.
const TEST_BUDGET_BYTES: u64 = 1 << 50;

/// The largest step of zeros, so that writers never wait long for one.
const ZEROED_STEP_MAX_BYTES: u64 = 8 << 20;

/// The growth options of an open.
#[derive(Clone, Copy, Debug)]
pub struct GrowthConfig {
    /// The largest step, in bytes.
    pub cap_bytes: u64,
    /// The expected length of the file, in bytes.
    pub capacity_bytes: Option<u64>,
    /// Growth ends at a multiple of this: the append unit.
    pub unit_bytes: u64,
    /// The next step begins when this many quarters of the last one are left. Writing zeros takes
    /// as long as writing data, so it begins earlier than a mere allocation.
    pub low_water_quarters: u64,
}

impl GrowthConfig {
    /// For space ahead that is filled with zeros, or only allocated.
    pub fn new(
        cap_bytes: u64,
        capacity_bytes: Option<u64>,
        unit_bytes: u64,
        is_zeroed: bool,
    ) -> Self {
        // Zeros are written like data, and accumulate before the next flush.
        let step_max = if is_zeroed { ZEROED_STEP_MAX_BYTES } else { u64::MAX };
        Self {
            cap_bytes: cap_bytes.min(step_max).max(unit_bytes),
            capacity_bytes,
            unit_bytes,
            low_water_quarters: if is_zeroed { 3 } else { 2 },
        }
    }
}

/// The space that waiting operations need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The start of the first of them. If it is beyond the physical size, the gap stays a hole.
    pub start: u64,
    /// The end of the first of them: it fails with less.
    pub least: u64,
    /// The end of all of them.
    pub end: u64,
}

/// The limits of the file system and the process.
#[derive(Clone, Copy, Debug)]
pub struct SpaceLimits {
    /// Free bytes on the file system.
    pub free_bytes: u64,
    /// The largest file size for this process (RLIMIT_FSIZE).
    pub size_max: u64,
    /// The grant of the process-wide budget.
    pub granted_bytes: u64,
}

/// One step of growth: allocate `from..to`, or less, but at least up to `least`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Start of the allocation: the physical size, or further if the gap stays a hole.
    pub from: u64,
    /// The new physical size.
    pub to: u64,
    /// The smallest useful new physical size.
    pub least: u64,
    unit: u64,
}

impl Plan {
    /// Returns the next smaller step after "no space": half of it, and at last only the needed
    /// space.
    pub fn smaller(self) -> Option<Self> {
        let half = (self.from + (self.to - self.from) / 2) / self.unit * self.unit;
        let to = half.max(self.least);
        (to < self.to && to > self.from).then_some(Self { to, ..self })
    }
}

/// Plans the steps of one file.
#[derive(Clone, Copy, Debug)]
pub struct Planner {
    growth_config: GrowthConfig,
    next_step: u64,
    last_step: u64,
    first: bool,
}

impl Planner {
    /// A planner of a file that has not grown yet.
    pub fn new(growth_config: GrowthConfig) -> Self {
        let next_step = STEP_FIRST_BYTES.min(growth_config.cap_bytes);
        Self { growth_config, next_step, last_step: next_step, first: true }
    }

    /// Returns whether so little is left ahead that the next step should begin.
    pub fn below_low_water(&self, ahead: u64) -> bool {
        ahead < self.last_step / 4 * self.growth_config.low_water_quarters
    }

    /// Returns the expected length of the file; 0 if unknown.
    pub fn capacity(&self) -> u64 {
        self.growth_config.capacity_bytes.unwrap_or(0)
    }

    /// Returns the preferred size of the next step.
    pub fn wanted(&self) -> u64 {
        self.next_step.max(if self.first {
            self.growth_config.capacity_bytes.unwrap_or(0)
        } else {
            0
        })
    }

    /// Returns the next step, or None if there is no room for a useful one. `physical` and
    /// `reserved` are the current sizes.
    pub fn plan(
        &self,
        physical: u64,
        reserved: u64,
        need: Option<Need>,
        room: SpaceLimits,
    ) -> Option<Plan> {
        let unit = self.growth_config.unit_bytes;
        let from = need.map_or(physical, |need| physical.max(need.start / unit * unit));
        let step = self.wanted().min(room.free_bytes / FREE_SPACE_FRACTION).min(room.granted_bytes);
        let end = need.map_or(reserved, |need| need.end);
        let target = match self.growth_config.capacity_bytes {
            Some(capacity) if self.first && capacity > from => {
                capacity.clamp(from, from.saturating_add(step))
            }
            _ => from.max(end).saturating_add(step),
        };
        if need.is_none() && step < unit {
            return None;
        }
        let ceiling = room.size_max.min(i64::MAX as u64) / unit * unit;
        let least = need.map_or(from + unit, |need| need.least).div_ceil(unit) * unit;
        let to = target.max(end).div_ceil(unit).saturating_mul(unit).max(least).min(ceiling);
        (least <= to && to > physical).then_some(Plan { from, to, least, unit })
    }

    /// Records a completed step, after which the file is grown to `physical`. The next step
    /// doubles.
    pub fn carried_out(&mut self, plan: Plan, physical: u64) {
        self.first = false;
        self.last_step = (physical - plan.from).min(self.growth_config.cap_bytes);
        self.next_step = self.next_step.saturating_mul(2).min(self.growth_config.cap_bytes);
    }

    /// Starts small again, after the file was truncated to its logical size.
    pub fn reset(&mut self) {
        *self = Self::new(self.growth_config);
    }
}

/// Limits the growth ahead of all files of the process together.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    taken: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, taken: 0 }
    }

    /// Sets a new limit; granted space stays.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Requests `wanted` bytes for a file with the charge `charged`, of which `ahead` bytes are
    /// still unused. Frees the rest of the charge; `wanted` of 0 only does that. Grants at most a
    /// quarter of the remaining budget, so that many files that start at once all get some. Returns
    /// the file's new charge, which includes the grant, and the grant.
    pub fn grant(&mut self, charged: u64, ahead: u64, wanted: u64) -> (u64, u64) {
        self.give_back(charged);
        self.taken += ahead;
        let granted = wanted.min(self.limit.saturating_sub(self.taken) / 4);
        self.taken += granted;
        (ahead + granted, granted)
    }

    fn give_back(&mut self, charged: u64) {
        self.taken = self.taken.checked_sub(charged).expect("no file gives back more than it took");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GROWTH_CONFIG: GrowthConfig = GrowthConfig {
        cap_bytes: 256 * MIB,
        capacity_bytes: None,
        unit_bytes: 4096,
        low_water_quarters: 2,
    };
    const SPACE_LIMITS: SpaceLimits =
        SpaceLimits { free_bytes: 1 << 40, size_max: u64::MAX, granted_bytes: 1 << 40 };

    #[test]
    fn steps_double_up_to_the_cap() {
        let mut planner = Planner::new(GROWTH_CONFIG);
        let mut physical = 0;
        let mut steps = Vec::new();
        for _ in 0..8 {
            let plan = planner.plan(physical, physical, None, SPACE_LIMITS).unwrap();
            planner.carried_out(plan, plan.to);
            steps.push((plan.to - physical) / MIB);
            physical = plan.to;
        }
        assert_eq!(steps, [32, 64, 128, 256, 256, 256, 256, 256]);
    }

    #[test]
    fn a_cap_without_bounds_does_not_overflow() {
        let mut planner = Planner::new(GrowthConfig { cap_bytes: u64::MAX, ..GROWTH_CONFIG });
        for _ in 0..80 {
            let plan = planner.plan(0, 0, None, SPACE_LIMITS).unwrap();
            planner.carried_out(plan, plan.to);
        }
        assert!(planner.below_low_water(0));
    }

    #[test]
    fn one_small_append_does_not_start_a_second_step() {
        for low_water_quarters in [2, 3] {
            let mut planner = Planner::new(GrowthConfig { low_water_quarters, ..GROWTH_CONFIG });
            let plan = planner.plan(0, 0, None, SPACE_LIMITS).unwrap();
            planner.carried_out(plan, plan.to);
            assert!(!planner.below_low_water(plan.to - 4096));
        }
    }

    #[test]
    fn a_step_never_takes_more_than_an_eighth_of_the_free_space() {
        let room = SpaceLimits { free_bytes: 16 * MIB, ..SPACE_LIMITS };
        let plan = Planner::new(GROWTH_CONFIG).plan(0, 0, None, room).unwrap();
        assert_eq!(plan.to, 2 * MIB);
    }

    #[test]
    fn a_need_is_met_even_without_budget() {
        let room = SpaceLimits { granted_bytes: 0, ..SPACE_LIMITS };
        let need = Need { start: 0, least: 4096, end: 3 * 4096 };
        let plan = Planner::new(GROWTH_CONFIG).plan(0, 0, Some(need), room).unwrap();
        assert_eq!((plan.to, plan.least), (3 * 4096, 4096));
    }

    #[test]
    fn without_budget_only_needed_space_grows() {
        let room = SpaceLimits { granted_bytes: 4095, ..SPACE_LIMITS };
        assert_eq!(Planner::new(GROWTH_CONFIG).plan(0, 0, None, room), None);
    }

    #[test]
    fn a_hole_left_on_purpose_is_not_allocated() {
        let need = Need { start: 1 << 30, least: (1 << 30) + 4096, end: (1 << 30) + 4096 };
        let plan =
            Planner::new(GROWTH_CONFIG).plan(32 * MIB, 4096, Some(need), SPACE_LIMITS).unwrap();
        assert_eq!(plan.from, 1 << 30);
    }

    #[test]
    fn capacity_is_reached_in_one_step() {
        let growth_config = GrowthConfig { capacity_bytes: Some(1 << 30), ..GROWTH_CONFIG };
        let plan = Planner::new(growth_config).plan(0, 0, None, SPACE_LIMITS).unwrap();
        assert_eq!(plan.to, 1 << 30);
    }

    #[test]
    fn a_file_beyond_its_capacity_grows_by_steps() {
        let growth_config = GrowthConfig { capacity_bytes: Some(MIB), ..GROWTH_CONFIG };
        let need = Need { start: MIB, least: MIB + 4096, end: MIB + 4096 };
        let plan = Planner::new(growth_config).plan(MIB, MIB, Some(need), SPACE_LIMITS).unwrap();
        assert_eq!(plan.to, 33 * MIB + 4096);
    }

    #[test]
    fn smaller_steps_end_at_the_need() {
        let mut plan = Plan { from: 0, to: 16 * 4096, least: 3 * 4096, unit: 4096 };
        let mut tried = vec![plan.to / 4096];
        while let Some(next) = plan.smaller() {
            plan = next;
            tried.push(plan.to / 4096);
        }
        assert_eq!(tried, [16, 8, 4, 3]);
    }

    #[test]
    fn smaller_steps_of_an_odd_size_end_at_a_unit() {
        let plan = Plan { from: 5000, to: 16 * 4096, least: 2 * 4096, unit: 4096 };
        assert_eq!(plan.smaller().map(|plan| plan.to), Some(8 * 4096));
    }

    #[test]
    fn the_file_size_limit_is_respected() {
        let room = SpaceLimits { size_max: 10_000, ..SPACE_LIMITS };
        let planner = Planner::new(GROWTH_CONFIG);
        assert_eq!(planner.plan(0, 0, None, room).unwrap().to, 8192);
        let need = Need { start: 8192, least: 12288, end: 12288 };
        assert_eq!(planner.plan(8192, 8192, Some(need), room), None);
    }

    #[test]
    fn a_thousand_files_stay_within_the_budget() {
        let mut budget = Budget::new(2048 * MIB);
        let granted: u64 = (0..1000).map(|_| budget.grant(0, 0, 256 * MIB).1).sum();
        assert!(granted <= 2048 * MIB);
        assert!(budget.grant(0, 0, 256 * MIB).1 < MIB);
    }

    #[test]
    fn used_space_goes_back_into_the_budget() {
        let mut budget = Budget::new(400);
        let (charged, granted) = budget.grant(0, 0, 1000);
        assert_eq!((charged, granted), (100, 100));
        let (charged, _) = budget.grant(charged, 0, 1000);
        budget.give_back(charged);
        assert_eq!(budget.taken, 0);
    }

    proptest! {
        #[test]
        fn every_plan_serves_its_need_within_the_room(
            physical in 0u64..1000, reserved in 0u64..1000, start in 0u64..2000, len in 1u64..50,
            free in 0u64..(1 << 30), granted in 0u64..(1 << 30)
        ) {
            let (physical, reserved) =
                (physical.max(reserved) * 4096, reserved.min(physical) * 4096);
            let start = (start * 4096).max(reserved);
            let least = start + len * 4096;
            let need = Need { start, least, end: least + 8192 };
            prop_assume!(least > physical);
            let room = SpaceLimits { free_bytes: free, size_max: u64::MAX, granted_bytes: granted };
            let plan =
                Planner::new(GROWTH_CONFIG).plan(physical, reserved, Some(need), room).unwrap();
            prop_assert!(plan.from >= physical && plan.from <= start.max(physical));
            prop_assert!(plan.to >= plan.least && plan.least >= least);
            let mut next = Some(plan);
            while let Some(plan) = next {
                prop_assert!(plan.to >= least && plan.to > plan.from && plan.to % 4096 == 0);
                next = plan.smaller();
            }
        }
    }

    const UNIT: u64 = 4;

    /// Every planner with small options, before its first step and after it.
    fn planners() -> impl Iterator<Item = Planner> {
        let caps = [0, 3, 4, 8, 12].into_iter();
        let growth_config = caps.flat_map(|cap_bytes| {
            let capacities = [None].into_iter().chain((0..=20).step_by(5).map(Some));
            capacities.map(move |capacity_bytes| GrowthConfig {
                cap_bytes,
                capacity_bytes,
                unit_bytes: UNIT,
                low_water_quarters: 2,
            })
        });
        growth_config.flat_map(|growth_config| {
            [true, false].map(|first| Planner { first, ..Planner::new(growth_config) })
        })
    }

    /// Every need of at least up to five bytes, perhaps with others behind it, that the size does
    /// not satisfy.
    fn needs(physical: u64) -> impl Iterator<Item = Option<Need>> {
        let starts_and_lens = (0..=18).flat_map(|start| [1, 4, 5].map(|len| (start, start + len)));
        let unmet = starts_and_lens.filter(move |(_, least)| *least > physical);
        let needs = unmet.flat_map(|(start, least)| {
            [0, 6].map(|more| Some(Need { start, least, end: least + more }))
        });
        [None].into_iter().chain(needs)
    }

    fn rooms() -> impl Iterator<Item = SpaceLimits> {
        [0, 32, 64, 1000].into_iter().flat_map(|free_bytes| {
            [0, 4, 9, 100].into_iter().flat_map(move |granted_bytes| {
                [7, 16, 27, u64::MAX].map(|size_max| SpaceLimits {
                    free_bytes,
                    size_max,
                    granted_bytes,
                })
            })
        })
    }

    /// The specification of the result: `plan` for a file of `physical` bytes.
    fn is_right(
        planner: &Planner,
        physical: u64,
        need: Option<Need>,
        room: SpaceLimits,
        plan: Option<Plan>,
    ) -> bool {
        let whole = |bytes: u64| bytes.div_ceil(UNIT) * UNIT;
        let step = planner.wanted().min(room.free_bytes / 8).min(room.granted_bytes);
        let ceiling = room.size_max.min(i64::MAX as u64) / UNIT * UNIT;
        let Some(plan) = plan else {
            // A step is useless or impossible.
            return match need {
                None => {
                    step < UNIT || whole(physical + UNIT) > ceiling || planner.capacity() > physical
                }
                Some(need) => whole(need.least) > ceiling,
            };
        };
        let hole_is_meant = need.is_some_and(|need| need.start > physical);
        let from = plan.from == physical
            || hole_is_meant && need.is_some_and(|need| plan.from <= need.start);
        let within = plan.to > physical && plan.to <= ceiling && plan.to.is_multiple_of(UNIT);
        let serves = need
            .is_none_or(|need| plan.least >= need.least && plan.to >= whole(need.end).min(ceiling));
        // Beyond the need, no more than the step.
        let needed = need.map_or(physical, |need| physical.max(need.end));
        let modest = plan.to <= whole(needed + step).max(plan.least);
        from && within
            && serves
            && modest
            && plan.to >= plan.least
            && plan.least.is_multiple_of(UNIT)
    }

    /// Every small planner, size, need and room: the plan, and its smaller successors after "no
    /// space".
    #[test]
    fn every_small_plan_is_right() {
        for planner in planners() {
            for physical in 0..=16 {
                for (need, room) in
                    needs(physical).flat_map(|need| rooms().map(move |room| (need, room)))
                {
                    let case = || format!("{planner:?} {physical} {need:?} {room:?}");
                    let plan = planner.plan(physical, 0, need, room);
                    assert!(is_right(&planner, physical, need, room, plan), "{}: {plan:?}", case());
                    let mut last = plan;
                    while let Some(plan) = last {
                        last = plan.smaller();
                        let Some(smaller) = last else {
                            assert!(
                                plan.to == plan.least || plan.to <= plan.from + UNIT,
                                "{}: {plan:?}",
                                case()
                            );
                            break;
                        };
                        assert!(
                            smaller.to < plan.to && smaller.to >= plan.least,
                            "{}: {smaller:?}",
                            case()
                        );
                        assert!(
                            smaller.to > plan.from && smaller.to.is_multiple_of(UNIT),
                            "{}: {smaller:?}",
                            case()
                        );
                    }
                }
            }
        }
    }

    /// Every three grants to two files, of every small budget: the charge of one reduces the grants
    /// of the other.
    #[test]
    fn every_small_budget_is_kept() {
        let asks: Vec<_> = (0..2)
            .flat_map(|file| {
                (0..4).flat_map(move |ahead| [0, 1, 2, 9].map(|wanted| (file, ahead, wanted)))
            })
            .collect();
        for limit in 0..16 {
            for number in 0..asks.len().pow(3) {
                let mut budget = Budget::new(limit);
                let mut charges = [0; 2];
                for n in 0..3 {
                    let (file, ahead, wanted) = asks[number / asks.len().pow(n) % asks.len()];
                    let others: u64 = charges[1 - file];
                    let (charge, granted) = budget.grant(charges[file], ahead, wanted);
                    charges[file] = charge;
                    assert_eq!(charge, ahead + granted);
                    assert_eq!(budget.taken, charges[0] + charges[1]);
                    assert!(
                        granted <= wanted
                            && (granted == 0 || others + ahead + 4 * granted <= limit)
                    );
                    let one_more = others + ahead + 4 * (granted + 1) <= limit;
                    assert!(granted == wanted || !one_more, "less than there is");
                }
            }
        }
    }
}
