//! Numeric CPU kernels of TideKV: shapes, not models.
