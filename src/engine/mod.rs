//! Lists every rule and option of DataFusion by name, with the reason why it is on or off.
//! `docs/engine.md` has this list for readers.

mod logical;
mod options;
mod physical;
mod planner;

pub use logical::logical_rules;
pub use options::session_config;
pub use physical::physical_rules;
pub use planner::Planner;

/// How one of DataFusion's rules is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It runs unchanged.
    On,
    /// It runs inside a rule of ours.
    Guarded,
    /// It does not run.
    Off,
}

/// A rule by its name, and its use.
type Listed = (&'static str, Use);

/// Looks a rule up. A rule that is not listed does not run, and fails a test.
fn listed(list: &[Listed], name: &str) -> Use {
    list.iter().find(|(known, _)| *known == name).map_or(Use::Off, |(_, becomes)| *becomes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use datafusion::config::ConfigOptions;
    use datafusion::optimizer::{Analyzer, Optimizer};
    use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;

    use super::*;

    const PAGE: &str = include_str!("../../docs/engine.md");

    fn assert_same(what: &str, found: &BTreeSet<String>, listed: &BTreeSet<String>) {
        let new: Vec<_> = found.difference(listed).collect();
        assert!(new.is_empty(), "{what} that src/engine does not list: {new:?}");
        let gone: Vec<_> = listed.difference(found).collect();
        assert!(gone.is_empty(), "{what} that DataFusion does not have: {gone:?}");
        let unexplained: Vec<_> =
            listed.iter().filter(|name| !PAGE.contains(&format!("`{name}`"))).collect();
        assert!(unexplained.is_empty(), "{what} without a line in docs/engine.md: {unexplained:?}");
    }

    fn names(list: &[Listed]) -> BTreeSet<String> {
        let names: BTreeSet<_> = list.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names.len(), list.len(), "a rule is listed twice");
        names
    }

    #[test]
    fn each_rule_of_datafusion_is_listed_and_explained() {
        let of_plans = Optimizer::new().rules;
        let of_plans = of_plans.iter().map(|rule| rule.name().to_owned()).collect();
        assert_same("logical rules", &of_plans, &names(logical::RULES));
        let analysers = Analyzer::new().rules;
        let analysers = analysers.iter().map(|rule| rule.name().to_owned()).collect();
        assert_same("analyser rules", &analysers, &names(logical::ANALYSERS));
        let physical = PhysicalOptimizer::new().rules;
        let physical = physical.iter().map(|rule| rule.name().to_owned()).collect();
        assert_same("physical rules", &physical, &names(physical::RULES));
    }

    #[test]
    fn each_option_of_datafusion_is_listed_and_explained() {
        let found: BTreeSet<_> =
            ConfigOptions::new().entries().into_iter().map(|entry| entry.key).collect();
        let listed: BTreeSet<_> = options::names().map(str::to_owned).collect();
        assert_same("options", &found, &listed);
    }

    #[test]
    fn options_are_as_they_are_listed() {
        let config = session_config().unwrap();
        for (key, value) in options::SET {
            let entries = config.options().entries();
            let found = entries.iter().find(|entry| entry.key == *key).unwrap();
            assert_eq!(found.value.as_deref(), Some(*value), "{key}");
        }
    }

    #[test]
    fn what_is_off_does_not_run() {
        let runs: Vec<_> = logical_rules().iter().map(|rule| rule.name().to_owned()).collect();
        for (name, becomes) in logical::RULES {
            assert_eq!(runs.iter().any(|run| run == name), *becomes != Use::Off, "{name}");
        }
        let runs: Vec<_> = physical_rules().iter().map(|rule| rule.name().to_owned()).collect();
        for (name, becomes) in physical::RULES {
            assert_eq!(runs.iter().any(|run| run == name), *becomes != Use::Off, "{name}");
        }
    }

    #[test]
    fn a_rule_that_nobody_lists_does_not_run() {
        assert_eq!(listed(logical::RULES, "a_new_rule"), Use::Off);
    }
}
