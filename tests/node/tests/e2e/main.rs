//! Tests that need an installed Mimeo: pods, Services and probes, rollouts, reboots, upgrades,
//! removal.
//!
//! The tests share one node and run one after another; see [`mimeo_node_tests`]. The tests of
//! Mimeo's behaviour run on bare control planes (`tests/tests/it/`), faster and with more cases.

mod certificates;
mod chart;
mod dist;
mod doors;
mod image;
mod install;
mod leader;
mod outage;
mod people;
mod restricted;
mod rollout;
mod story;
mod tenant;
mod traces;
mod uninstall;
mod upgrade;
