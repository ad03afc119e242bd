//! Counting global allocator: live and peak bytes, large blocks returned to the system at once.
