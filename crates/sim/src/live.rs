//! What the live file system does, held against the model step by step.

use bedplate_fs::ErrorKind;

use crate::act::Stage;
use crate::history::History;
use crate::model::Model;
use crate::outcome::Outcome;
use crate::workload::{On, Step};

/// Carries out a step that does not mount, on the file system and in the model.
pub(crate) fn carry_out(
    stage: &Stage,
    history: &mut History,
    step: &Step,
) -> Result<Outcome, String> {
    let result = stage.carry_out(step);
    let parts = history.model.lose(&stage.automatic())?;
    if let Err(error) = &result
        && !parts.is_empty()
    {
        return Err(format!("S-82: it failed although checkpoints were deleted for it: {error}"));
    }
    history.push_parts(parts);
    hold_against(&mut history.model, step, &result)?;
    // A step that cannot be carried out changes nothing and promises nothing.
    Ok(result.unwrap_or_default())
}

/// Carries out in the model what a step did on the file system.
pub(crate) fn hold_against(
    model: &mut Model,
    step: &Step,
    result: &bedplate_fs::Result<Outcome>,
) -> Result<(), String> {
    match result {
        Ok(outcome) => {
            compare_outcome(model, step, outcome)?;
            model.apply(step, outcome).map_err(|why| format!("it succeeded, but {why}"))
        }
        // A full volume is no fault, and changes nothing (S-34); how full it is the model does not
        // know.
        Err(error) if error.kind == ErrorKind::NoSpace => Ok(()),
        Err(error) => match model.clone().apply(step, &Outcome::default()) {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("it failed and nothing speaks against it: {error}")),
        },
    }
}

/// What a step returned against what the model has, before the step is carried out there.
pub(crate) fn compare_outcome(
    model: &mut Model,
    step: &Step,
    outcome: &Outcome,
) -> Result<(), String> {
    if let (Step::Read(on, _, offset, len), Some(read)) = (step, &outcome.read) {
        let content = model.content(*on)?;
        let from = usize::try_from(*offset).expect("small").min(content.len());
        let to = (from + usize::try_from(*len).expect("small")).min(content.len());
        if read[..] != content[from..to] {
            let at = read
                .iter()
                .zip(&content[from..to])
                .position(|(a, b)| a != b)
                .unwrap_or_else(|| read.len().min(to - from));
            return Err(format!(
                "S-20: the read differs from byte {at} on ({} bytes, {} expected)",
                read.len(),
                to - from
            ));
        }
    }
    if let (Step::Hold(_, file, dir, _), Some(opened)) = (step, outcome.opened) {
        let named = model.ino(On::Name(*file, *dir))?;
        if opened != named {
            return Err(format!("inode {} was opened, the name led to {}", opened.0, named.0));
        }
    }
    let appended = match step {
        Step::Append(file, dir, ..) => Some(On::Name(*file, *dir)),
        Step::AppendHeld(slot, ..) => Some(On::Held(*slot)),
        _ => None,
    };
    if let (Some(on), Some(at)) = (appended, outcome.at) {
        let end = model.content(on)?.len() as u64;
        if at != end {
            return Err(format!("S-32: the append went to byte {at} of {end}"));
        }
    }
    Ok(())
}
