//! The CPU backend of TideKV.
