//! From what a user asks a volume to become to a layout and a way there: which member takes which
//! place. Pure.
//!
//! A layout that this software makes is a grid of members, columns by plexes. What is asked for is
//! another grid. Members stay in their places where they have one in both; others come from the
//! plexes and columns that go, and from members without data.

use crate::group::MEMBERS_MAX;
use crate::layout::walk::{self, Walk};
use crate::layout::{Order, SCRATCH_BYTES, SCRATCH_START, STEP_BYTES_MAX, order};
use crate::{
    Arrangement, Config, Direction, Error, Extent, Layout, MemberState, Mirror, Relayout, Result,
    Shape, Stripe, VolumeConfig, Which,
};

/// What a volume is to become; what is not said stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// The arrangement.
    pub shape: Option<Shape>,
    /// How many columns; parts where it is concatenated.
    pub columns: Option<usize>,
    /// The stripe unit in bytes.
    pub unit_bytes: Option<u64>,
    /// How many copies of everything.
    pub plexes: Option<usize>,
    /// The size in bytes, rounded up to whole rows; without it the volume takes all that its
    /// members have.
    pub size_bytes: Option<u64>,
    /// The most that one step moves, because writes to it wait meanwhile.
    pub step_bytes_max: Option<u64>,
    /// A member that gives its data to others.
    pub without: Option<Which>,
}

impl Target {
    /// Returns what makes a volume larger: of a size, or as large as its members and, where it is
    /// concatenated, those without data let it be.
    pub(crate) fn to_grow(
        config: &Config,
        volume: &VolumeConfig,
        size_bytes: Option<u64>,
    ) -> Result<Self> {
        let present = volume.layout.size_bytes();
        if let Some(size) = size_bytes.filter(|size| *size < present) {
            return Err(Error::invalid(format!(
                "the volume has {present} bytes, more than {size}: see 'bedplate volume shrink'"
            )));
        }
        let shape = read(&volume.layout).map(|(shape, _, grid)| (shape, grid.len()));
        let to = Self { size_bytes, ..Self::default() };
        let Some((Shape::Concat, parts)) = shape else { return Ok(to) };
        Ok(Self {
            shape: Some(Shape::Concat),
            columns: Some(parts + without_data(config).len()),
            ..to
        })
    }
}

/// Returns the members that bring room.
fn without_data(config: &Config) -> Vec<u16> {
    let active = (0..config.members.len())
        .filter(|member| config.members[*member].state == MemberState::Active);
    active
        .filter(|member| config.volume_on(*member).is_none())
        .map(|member| member as u16)
        .collect()
}

/// Members by column and plex.
type Grid = Vec<Vec<u16>>;

/// What stays while a layout is looked for.
struct LayoutContext<'a> {
    config: &'a Config,
    volume: &'a VolumeConfig,
    block: u64,
    shape: Shape,
    unit_bytes: u64,
    columns: usize,
    plexes: usize,
    without: Option<u16>,
}

/// Returns the relayout that makes a volume what is asked for; it has not begun.
///
/// # Errors
/// `Invalid` with the reason.
pub(crate) fn plan(
    config: &Config,
    volume: &VolumeConfig,
    target: &Target,
    block: u64,
) -> Result<Relayout> {
    let (shape, unit_bytes, grid) =
        read(&volume.layout).ok_or_else(|| Error::invalid(no_grid(config, volume)))?;
    let context = context(config, volume, target, block, (shape, unit_bytes, &grid))?;
    let present = volume.layout.size_bytes();
    let whole = |size: u64| {
        size.checked_next_multiple_of(block.max(4096))
            .ok_or_else(|| Error::invalid(format!("no volume has {size} bytes")))
    };
    let wanted = target.size_bytes.map(whole).transpose()?;
    let (mut room, mut refusal) = (0, None);
    let mut layouts = Vec::new();
    for cells in context.grids(&grid) {
        match context.lay(&cells) {
            Ok(layout) => {
                room = room.max(layout.size_bytes());
                layouts.push(layout);
            }
            Err(error) => drop(refusal.get_or_insert(error)),
        }
    }
    layouts.retain(|layout| layout.size_bytes() >= wanted.unwrap_or(present));
    let step_bytes_max = target.step_bytes_max.unwrap_or(STEP_BYTES_MAX);
    let next = |layout: &Layout| wanted.map_or(layout.clone(), |size| layout.truncated(size));
    // What goes from one end to the other moves once; in cycles everything goes by way of the
    // scratch area.
    let found = layouts.iter().find_map(|layout| context.walk(next(layout), step_bytes_max));
    if let Some(relayout) = found.or_else(|| {
        layouts.iter().find_map(|layout| context.walk_in_cycles(next(layout), step_bytes_max))
    }) {
        debug_assert!(
            relayout.next.size_bytes() >= wanted.unwrap_or(present),
            "a volume is laid out for no fewer bytes than are asked for"
        );
        return Ok(relayout);
    }
    Err(refusal.unwrap_or_else(|| context.refusal(room, wanted.unwrap_or(present))))
}

/// Reads the grid of a layout. The unit is 0 where there is none.
fn read(layout: &Layout) -> Option<(Shape, u64, Grid)> {
    let leaf = |layout: &Layout| {
        if let Layout::Extent(extent) = layout { Some(extent.member) } else { None }
    };
    let leaves = |layouts: &[Layout]| layouts.iter().map(leaf).collect::<Option<Vec<u16>>>();
    let one_by_one =
        |members: Vec<u16>| members.into_iter().map(|member| vec![member]).collect::<Grid>();
    let unit = layout.unit_bytes().unwrap_or(0);
    let (shape, grid) = match layout {
        Layout::Extent(extent) => (Shape::Concat, vec![vec![extent.member]]),
        Layout::Concat(concat) => (Shape::Concat, one_by_one(leaves(concat.parts())?)),
        Layout::Stripe(stripe) if leaves(stripe.columns()).is_some() => {
            (Shape::Stripe, one_by_one(leaves(stripe.columns())?))
        }
        Layout::Stripe(stripe) => (
            Shape::StripeMirror,
            stripe
                .columns()
                .iter()
                .map(|column| leaves(column.children()))
                .collect::<Option<_>>()?,
        ),
        Layout::Mirror(mirror) if leaves(mirror.plexes()).is_some() => {
            (Shape::Mirror, vec![leaves(mirror.plexes())?])
        }
        Layout::Mirror(mirror) => {
            let plexes = mirror
                .plexes()
                .iter()
                .map(|plex| leaves(plex.children()))
                .collect::<Option<Vec<_>>>()?;
            let columns = plexes.first()?.len();
            (
                Shape::MirrorStripe,
                (0..columns)
                    .map(|column| plexes.iter().map(|plex| plex.get(column).copied()).collect())
                    .collect::<Option<_>>()?,
            )
        }
        Layout::Raid5(raid5) => (Shape::Raid5, one_by_one(leaves(raid5.columns())?)),
    };
    Some((shape, unit, grid))
}

fn no_grid(config: &Config, volume: &VolumeConfig) -> String {
    let (group, layout) = (&config.name, volume.layout.name());
    format!(
        "group {group}: a volume of layout {layout} keeps it: make a new group of the layout \
         wanted and copy the files there"
    )
}

/// Completes what was asked for with what there is.
fn context<'a>(
    config: &'a Config,
    volume: &'a VolumeConfig,
    target: &Target,
    block: u64,
    (shape, unit_bytes, grid): (Shape, u64, &Grid),
) -> Result<LayoutContext<'a>> {
    let (columns, plexes) = (grid.len(), grid.first().map_or(1, Vec::len));
    let (columns, plexes) = (target.columns.unwrap_or(columns), target.plexes.unwrap_or(plexes));
    let shape = shape_for(target, shape, (columns, plexes), grid.len());
    let (columns, plexes) = counts_for(target, shape, (columns, plexes))?;
    if columns == 0 || columns > MEMBERS_MAX || plexes > crate::COPIES_MAX {
        return Err(Error::invalid(format!(
            "{columns} columns on {plexes} plexes are not possible: 1 to {MEMBERS_MAX} columns, 1 \
             to 4 plexes"
        )));
    }
    if target.unit_bytes.is_some() && !shape.is_striped() {
        return Err(Error::invalid(
            "only stripes and RAID-5 have a unit: leave it out, or name such a layout and how many \
             columns"
                .to_owned(),
        ));
    }
    let unit_bytes = target.unit_bytes.unwrap_or(if unit_bytes > 0 {
        unit_bytes
    } else {
        shape.unit_bytes_default()
    });
    let without = target.without.map(|which| which.index_in(config)).transpose()?;
    if let Some(index) = without.filter(|index| !volume.members().contains(index)) {
        let (group, path) = (&config.name, &config.members[index].path);
        return Err(Error::invalid(format!(
            "group {group}: {path} holds no data of this volume: 'bedplate volume remove' lets go \
             of it"
        )));
    }
    Ok(LayoutContext {
        config,
        volume,
        block,
        shape,
        unit_bytes,
        columns,
        plexes,
        without: without.map(|index| index as u16),
    })
}

/// Returns the shape that is asked for, or that the numbers of columns and plexes amount to where
/// there are as many columns as `present` says.
fn shape_for(
    target: &Target,
    shape: Shape,
    (columns, plexes): (usize, usize),
    present: usize,
) -> Shape {
    let striped = match shape {
        Shape::Stripe
        | Shape::StripeMirror
        | Shape::MirrorStripe
        | Shape::Raid5
        | Shape::Mirror => true,
        Shape::Concat => {
            target.unit_bytes.is_some() || target.columns.is_some_and(|columns| columns > present)
        }
    };
    target.shape.unwrap_or(match (striped && columns > 1, plexes) {
        _ if shape.has_parity() && target.plexes.is_none() => shape,
        (false, 1) => Shape::Concat,
        (true, 1) => Shape::Stripe,
        (false, _) => Shape::Mirror,
        (true, _) => shape.nested(),
    })
}

/// Returns the numbers of columns and plexes of a shape, if those asked for are possible.
fn counts_for(
    target: &Target,
    shape: Shape,
    (columns, plexes): (usize, usize),
) -> Result<(usize, usize)> {
    let named = |least: usize, word: &str| {
        Error::invalid(format!("say how many {word} there shall be, {least} or more {word}"))
    };
    Ok(match shape {
        Shape::Concat | Shape::Stripe | Shape::Raid5
            if target.plexes.is_some_and(|plexes| plexes != 1) =>
        {
            return Err(Error::invalid(
                "a layout without mirrors has one plex: name a mirrored layout, or none".to_owned(),
            ));
        }
        Shape::Mirror if target.columns.is_some_and(|columns| columns != 1) => {
            return Err(Error::invalid(
                "a mirror has one column: name stripe-mirror or mirror-stripe, or none".to_owned(),
            ));
        }
        Shape::Raid5 if columns < 3 => return Err(named(3, "columns")),
        Shape::Raid5 => (columns, 1),
        Shape::Concat => (columns, 1),
        Shape::Stripe if columns < 2 => return Err(named(2, "columns")),
        Shape::Stripe => (columns, 1),
        Shape::Mirror if plexes < 2 => return Err(named(2, "plexes")),
        Shape::Mirror => (1, plexes),
        Shape::StripeMirror | Shape::MirrorStripe if columns < 2 => {
            return Err(named(2, "columns"));
        }
        Shape::StripeMirror | Shape::MirrorStripe if plexes < 2 => return Err(named(2, "plexes")),
        Shape::StripeMirror | Shape::MirrorStripe => (columns, plexes),
    })
}

impl LayoutContext<'_> {
    /// Returns grids to try, the one with the most members in their places first.
    fn grids(&self, present: &Grid) -> Vec<Grid> {
        let spare = without_data(self.config);
        let stays = |column: usize, plex: usize| column < self.columns && plex < self.plexes;
        let mut going: Vec<u16> = Vec::new();
        for (column, plexes) in present.iter().enumerate() {
            going.extend(
                plexes
                    .iter()
                    .enumerate()
                    .filter(|(plex, _)| !stays(column, *plex))
                    .map(|(_, member)| *member),
            );
        }
        let leaves = |member: &u16| self.without == Some(*member);
        going.retain(|member| !leaves(member));
        let kept = |column: usize, plex: usize| {
            present
                .get(column)
                .and_then(|plexes| plexes.get(plex))
                .copied()
                .filter(|member| !leaves(member))
        };
        let with = |pool: Vec<u16>, keep: bool| {
            let mut pool = pool.into_iter();
            let mut cell =
                |column, plex| kept(column, plex).filter(|_| keep).or_else(|| pool.next());
            (0..self.columns)
                .map(|column| {
                    (0..self.plexes).map(|plex| cell(column, plex)).collect::<Option<Vec<u16>>>()
                })
                .collect::<Option<Grid>>()
        };
        let both = || going.iter().chain(&spare).copied().collect();
        // Of a concatenation only the first part is where a stripe may overwrite it in order; of a
        // stripe likewise.
        let first = || {
            let mut pool = spare.iter().copied();
            let mut cell =
                |column, plex| kept(column, plex).filter(|_| column == 0).or_else(|| pool.next());
            (0..self.columns)
                .map(|column| {
                    (0..self.plexes).map(|plex| cell(column, plex)).collect::<Option<Vec<u16>>>()
                })
                .collect::<Option<Grid>>()
        };
        [with(both(), true), with(spare.clone(), true), first(), with(spare.clone(), false)]
            .into_iter()
            .flatten()
            .collect()
    }

    fn extent(&self, member: u16) -> Extent {
        let start = self.config.data_start;
        Extent {
            member,
            start,
            len: self.config.members[usize::from(member)]
                .size_bytes
                .saturating_sub(start + self.config.reserve_bytes),
        }
    }

    fn lay(&self, cells: &Grid) -> Result<Layout> {
        let extents: Vec<Extent> = match self.shape {
            Shape::MirrorStripe => (0..self.plexes)
                .flat_map(|plex| cells.iter().map(move |column| column[plex]))
                .map(|member| self.extent(member))
                .collect(),
            _ => cells.iter().flatten().map(|member| self.extent(*member)).collect(),
        };
        Arrangement { shape: self.shape, unit_bytes: self.unit_bytes, plexes: self.plexes }
            .lay(&extents, self.block)
    }

    fn walk(&self, next: Layout, step_bytes_max: u64) -> Option<Relayout> {
        let from = &self.volume.layout;
        let span = from.size_bytes().min(next.size_bytes());
        let scratch = scratch(from, &next);
        let there = walk::is_there(from, &next, span);
        let walk = if there {
            Some(Walk::still())
        } else {
            walk::find(from, &next, span, scratch.size_bytes(), self.block)
        };
        let Walk { direction, grain_bytes } = walk?;
        // What is there already need not go.
        let position = if there || direction == Direction::Downward { span } else { 0 };
        Some(Relayout { direction, position, grain_bytes, ..upward(next, scratch, step_bytes_max) })
    }

    fn walk_in_cycles(&self, next: Layout, step_bytes_max: u64) -> Option<Relayout> {
        let from = &self.volume.layout;
        let (scratch, span) = (scratch(from, &next), from.size_bytes().min(next.size_bytes()));
        let grain_bytes = order::grain(from, &next, span, self.block)?;
        let relayout =
            Relayout { grain_bytes, in_cycles: true, ..upward(next, scratch, step_bytes_max) };
        (relayout.fault(from).is_none() && Order::of(from, &relayout).is_some()).then_some(relayout)
    }

    fn refusal(&self, room: u64, wanted: u64) -> Error {
        let (group, cells, columns, plexes) =
            (&self.config.name, self.columns * self.plexes, self.columns, self.plexes);
        if room == 0 {
            let present = self.volume.members().len();
            return Error::invalid(format!(
                "group {group}: {columns} columns on {plexes} plexes need {cells} members, and \
                 there are {present} and no more without data: add some with 'bedplate volume add'"
            ));
        }
        if room < wanted {
            return Error::invalid(format!(
                "group {group}: those members would hold {room} bytes as {columns} columns on \
                 {plexes} plexes, and {wanted} are needed: add members with 'bedplate volume add', \
                 or shrink the volume first"
            ));
        }
        let unit = self.unit_bytes;
        Error::invalid(format!(
            "group {group}: on these members the new layout would overwrite what the present one \
             still needs (units of {unit} bytes go in place up to 512 KiB a column or row where \
             there are copies or parity; a concatenation becomes a RAID-5 by way of a stripe): add \
             up to {cells} members that hold {wanted} bytes with 'bedplate volume add'; those that \
             are without data then can be removed"
        ))
    }
}

impl Walk {
    /// The walk where nothing has to move.
    fn still() -> Self {
        Self { direction: Direction::Upward, grain_bytes: 1 }
    }
}

/// Returns a relayout that has not begun, byte by byte from the first address on.
fn upward(next: Layout, scratch: Layout, step_bytes_max: u64) -> Relayout {
    Relayout {
        next,
        direction: Direction::Upward,
        position: 0,
        staged_bytes: 0,
        scratch,
        grain_bytes: 1,
        step_bytes_max,
        paused: false,
        logs_swapped: false,
        in_cycles: false,
    }
}

/// Returns the scratch area: on the members of both layouts, with as many copies as the better of
/// them.
fn scratch(from: &Layout, to: &Layout) -> Layout {
    let mut members: Vec<u16> =
        from.extents().iter().chain(&to.extents()).map(|extent| extent.member).collect();
    members.sort_unstable();
    members.dedup();
    let parity = from.has_parity() || to.has_parity();
    let copies = from.copies().max(to.copies()).max(if parity { 2 } else { 1 });
    let extent = |member: &u16| {
        Layout::Extent(Extent { member: *member, start: SCRATCH_START, len: SCRATCH_BYTES })
    };
    let column = |members: &[u16]| match members {
        [member] => extent(member),
        members => Layout::Mirror(Mirror::new(members.iter().map(extent).collect())),
    };
    let mut columns: Vec<Layout> = members.chunks_exact(copies).map(column).collect();
    if columns.len() == 1 {
        columns.remove(0)
    } else {
        Layout::Stripe(Stripe::new(64 << 10, columns))
    }
}
