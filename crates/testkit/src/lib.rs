//! Tiny seeded models, dense references and comparators for TideKV's tests.
