//! Model files as typed tensor tables: untrusted bytes in, checked views out.
