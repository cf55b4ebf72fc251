// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

// What the coordinator keeps, and the forms in which moves arrive. Money is counted in gwei, time in seconds.
// What the rules never ask for again (statements, cuts, digests of data) stands in the log of moves alone.

enum Status {
    Open,
    Final,
    Slashed
}

enum Phase {
    Partition,
    Choose,
    Leaf,
    Ruling,
    Drawing,
    Committing,
    Revealing,
    Appealable,
    Settled
}

/// Who is at fault; the numbers are those that votes and seals are hashed with. `Nobody`: it could not be decided.
enum Fault {
    None,
    Prover,
    Challenger,
    Nobody
}

/// Why a dispute stands at a ruling.
enum Ground {
    None,
    Structure,
    Budget,
    Leaf
}

/// A tree of records that somebody answers for with `bond`.
struct Claim {
    address prover;
    uint48 deadline;
    Status status;
    uint8 levels;
    uint64 bond;
    uint40 size;
    uint64 disputes;
    bytes32 root;
    bytes32 seal;
}

/// Leaves [low, high) of a tree, contested. `deadline` belongs to phases without a party to move, `seats` to a draw.
struct Dispute {
    address challenger;
    uint56 claim;
    Phase phase;
    Fault fault;
    Ground ground;
    uint8 level;
    bool isUnsealed;
    uint40 size;
    uint40 low;
    uint40 high;
    uint32 turn;
    uint8 seats;
    uint48 proverClock;
    uint48 challengerClock;
    uint48 since;
    uint48 deadline;
    uint64 bond;
    uint64 deposit;
    uint64 drawBlock;
    bytes32 root;
    bytes32 leaf;
    Round[] rounds;
    Appealed[] appeals;
}

/// One committee, seat by seat: the places of its members in the rules, their votes, and what they committed to;
/// bit i of `committed` says that seat i has (a commitment may be zero).
struct Round {
    bytes seats;
    bytes votes;
    uint256 committed;
    mapping(uint256 seat => bytes32) commitments;
}

struct Appealed {
    address party;
    Fault against;
    uint64 bond;
}

/// A member's stake, and how it stands: drawn in `serving` committees now, and bound until `boundUntil`.
struct Member {
    uint64 stake;
    bool isActive;
    uint32 serving;
    uint48 boundUntil;
}

/// Money that somebody is owed and may take out from `ripe` on, in real time.
struct Credit {
    uint64 amount;
    uint48 ripe;
}

/// Whether game time stands still, since when, how long it did in all, and from when on it may be stopped again.
struct Pausing {
    bool isPaused;
    uint48 since;
    uint48 total;
    uint48 allowedFrom;
}

/// What everybody agrees on before the first claim; the zero address stands for nobody.
struct Rules {
    uint64 proverBond;
    uint64 challengerBond;
    uint64 appealBond;
    uint64 stake;
    uint64 voteFee;
    uint16 reward;
    uint40 challengeWindow;
    uint40 clock;
    uint40 extension;
    uint40 refereeWindow;
    uint40 voteWindow;
    uint40 revealWindow;
    uint40 appealWindow;
    uint40 withdrawalDelay;
    uint40 pauseMax;
    uint40 pauseRest;
    uint8 ways;
    uint8 committee;
    uint8 appeals;
    address[] members;
    address referee;
    address beacon;
    address planter;
    address guardian;
    address treasury;
}

/// The leaf at the end of a child, with the proof of its place in the tree.
struct Cut {
    bytes32 leaf;
    bytes32[] proof;
}

/// A value by its reference in the graph and its digest.
struct Named {
    string name;
    bytes32 digest;
}

/// An operator record by its parts; its canonical bytes are rebuilt from them.
struct RecordForm {
    uint64 node;
    string operator;
    Named[] inputs;
    Named[] outputs;
}

/// A small tensor by its parts: one chunk of at most 4,096 bytes of 4- or 8-byte floats.
struct TensorForm {
    uint8 itemBytes;
    uint64[] shape;
    bytes data;
}

/// The leaf that gave a value, and its place.
struct Writer {
    RecordForm record;
    uint40 index;
    bytes32[] proof;
}

enum Offence {
    Edge,
    Cast,
    Product
}

/// What anybody can check within a few hundred operations; `writers` holds one entry for an edge and none else.
struct Evidence {
    Offence offence;
    RecordForm record;
    Writer[] writers;
    TensorForm[] tensors;
    uint64 element;
}

uint64 constant MONEY_MAX = 2 ** 53 - 1;
uint64 constant COUNT_MAX = 2 ** 53 - 1;
uint40 constant LEAVES_MAX = 2 ** 32;
uint256 constant PROOF_MAX = 64;
uint256 constant WAYS_MAX = 32;
uint256 constant MEMBERS_MAX = 255;
uint256 constant CREDITS_PER_WITHDRAWAL = 32;
