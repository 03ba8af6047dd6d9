//! What checkpoints and clones keep: before-images of rows, and the references to blocks that
//! several rows share.
//!
//! | file | holds |
//! | --- | --- |
//! | `checkpoint_row` | the rows of checkpoints and of before-images, byte by byte |
//! | `before_image` | the checkpoints in memory, and which rows a record must keep for them |
//! | `block_refs` | how many rows refer to a block that more than one refers to |
//! | `pending_unshare` | runs that may be written in place once a record is sealed |

mod before_image;
mod block_refs;
mod checkpoint_row;
mod pending_unshare;

pub use before_image::{Checkpoint, CheckpointSet, DeletedUpTo, PriorRow, PriorRows};
pub use block_refs::{BlockRefs, Others, RefCount, Referrer, freed_by};
#[cfg(any(test, feature = "forge"))]
pub use checkpoint_row::encode_image;
pub use checkpoint_row::{
    CheckpointRow, before_key, checkpoint_key, decode_image, has_before_images, image_extent,
    put_image, scope_key, split_before_key, split_checkpoint_key, split_scope_key,
};
