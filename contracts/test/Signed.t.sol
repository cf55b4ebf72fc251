// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Coordinator} from "../src/Coordinator.sol";
import {Phase} from "../src/Types.sol";
import {Scene} from "./Scene.sol";

/// Signed moves count once, on one chain, at one contract, for one signer, in time, in one spelling.
contract SignedTest is Scene {
    uint256 private constant KEY = 0xA11CE;
    uint256 private constant ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
    uint64 private constant DEADLINE = 1_800_000_100;

    address private signer;

    function setUp() public override {
        super.setUp();
        signer = vm.addr(KEY);
        vm.deal(address(this), 1 ether);
    }

    function testASignedMoveIsTheSignersMove() public {
        relayPost(coordinator, 0, signed(coordinator, 0, postCall()));
        (address prover,,,,,,,,) = coordinator.claims(0);
        require(prover == signer && address(coordinator).balance == 1000 gwei && coordinator.nonces(signer) == 1);
    }

    function testASignedMoveCountsOnce() public {
        bytes memory signature = signed(coordinator, 0, postCall());
        relayPost(coordinator, 0, signature);
        refusedWith("nonce");
        relayPost(coordinator, 0, signature);
        refusedWith("signature");
        relayPost(coordinator, 1, signature);
        relayPost(coordinator, 1, signed(coordinator, 1, postCall()));
    }

    function testAnotherContractRefusesIt() public {
        Coordinator other = new Coordinator(rules(), address(0));
        refusedWith("signature");
        relayPost(other, 0, signed(coordinator, 0, postCall()));
        relayPost(other, 0, signed(other, 0, postCall()));
    }

    function testAnotherChainRefusesIt() public {
        bytes memory signature = signed(coordinator, 0, postCall());
        uint256 here = block.chainid;
        vm.chainId(here + 1);
        refusedWith("signature");
        relayPost(coordinator, 0, signature);
        vm.chainId(here);
        relayPost(coordinator, 0, signature);
    }

    function testItHasADeadline() public {
        bytes memory signature = signed(coordinator, 0, postCall());
        vm.warp(DEADLINE + 1);
        refusedWith("expired");
        relayPost(coordinator, 0, signature);
        vm.warp(DEADLINE);
        relayPost(coordinator, 0, signature);
    }

    function testTheOtherSpellingOfASignatureIsRefused() public {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(KEY, typed(coordinator, 0, postCall()));
        bytes memory high = abi.encodePacked(r, bytes32(ORDER - uint256(s)), v == 27 ? uint8(28) : uint8(27));
        refusedWith("signature");
        relayPost(coordinator, 0, high);
        relayPost(coordinator, 0, abi.encodePacked(r, s, v));
    }

    function testFuzz_anotherKeyIsRefused(uint256 key) public {
        key = key % (ORDER - 1) + 1;
        vm.assume(key != KEY);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, typed(coordinator, 0, postCall()));
        refusedWith("signature");
        relayPost(coordinator, 0, abi.encodePacked(r, s, v));
    }

    function testFuzz_bytesThatAreNoSignatureAreRefused(bytes calldata signature) public {
        refusedWith("signature");
        relayPost(coordinator, 0, signature);
    }

    function testNobodySignsForTheZeroAddress() public {
        refusedWith("signature");
        coordinator.relay(address(0), 0, DEADLINE, postCall(), new bytes(65));
    }

    /// A move that is refused does not use its signature up, and the reason reaches the sender.
    function testTheReasonOfARefusalReachesTheSender() public {
        bytes memory call_ = abi.encodeCall(Coordinator.finalise, (0));
        refusedWith("unknown");
        coordinator.relay(signer, 0, DEADLINE, call_, signed(coordinator, 0, call_));
        require(coordinator.nonces(signer) == 0);
    }

    function testARelayedWithdrawalPaysTheSigner() public {
        relayPost(coordinator, 0, signed(coordinator, 0, postCall()));
        vm.warp(block.timestamp + 1000);
        coordinator.finalise(0);
        vm.warp(block.timestamp + 30);
        bytes memory call_ = abi.encodeCall(Coordinator.withdraw, ());
        uint64 deadline = uint64(block.timestamp);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(KEY, typedUntil(coordinator, 1, deadline, call_));
        coordinator.relay(signer, 1, deadline, call_, abi.encodePacked(r, s, v));
        require(signer.balance == 1000 gwei);
    }

    function testWhereThereIsABoardDataNeedsItsWord() public {
        coordinator = new Coordinator(rules(), vm.addr(BOARD_KEY));
        postBy(PROVER);
        vm.prank(CHALLENGER);
        coordinator.contest{value: 102 * GWEI}(0, 0, 1);
        reveal("", "attestation");
        reveal(attested(BOARD_KEY, 0, 0, keccak256("other data")), "attestation");
        reveal(attested(BOARD_KEY, 0, 1, LEAF), "attestation");
        reveal(attested(BOARD_KEY, 1, 0, LEAF), "attestation");
        reveal(attested(KEY, 0, 0, LEAF), "attestation");
        reveal(attested(BOARD_KEY, 0, 0, LEAF), "");
        (Phase phase,,,,) = coordinator.disputeAt(0);
        require(phase == Phase.Ruling);
    }

    function reveal(bytes memory attestation, string memory refusal) private {
        if (bytes(refusal).length > 0) refusedWith(refusal);
        vm.prank(PROVER);
        coordinator.reveal(0, 0, LEAF, new bytes32[](0), LEAF, attestation);
    }

    function attested(uint256 key, uint64 dispute, uint64 turn, bytes32 data) private view returns (bytes memory) {
        bytes32 kind = keccak256("Kept(uint64 dispute,uint64 turn,bytes32 data)");
        bytes32 message = keccak256(abi.encode(kind, dispute, turn, data));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, inDomain(coordinator, message));
        return abi.encodePacked(r, s, v);
    }

    function postCall() private pure returns (bytes memory) {
        return abi.encodeCall(Coordinator.post, (LEAF, 1, 1, LEAF, LEAF));
    }

    function relayPost(Coordinator target, uint256 nonce, bytes memory signature) private {
        target.relay{value: 1000 gwei}(signer, nonce, DEADLINE, postCall(), signature);
    }

    function signed(Coordinator target, uint256 nonce, bytes memory call_) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(KEY, typed(target, nonce, call_));
        return abi.encodePacked(r, s, v);
    }

    function typed(Coordinator target, uint256 nonce, bytes memory call_) private view returns (bytes32) {
        return typedUntil(target, nonce, DEADLINE, call_);
    }

    function typedUntil(Coordinator target, uint256 nonce, uint64 deadline, bytes memory call_)
        private
        view
        returns (bytes32)
    {
        bytes32 kind = keccak256("Move(address signer,uint256 nonce,uint64 deadline,bytes call)");
        return inDomain(target, keccak256(abi.encode(kind, signer, nonce, deadline, keccak256(call_))));
    }

    function inDomain(Coordinator target, bytes32 message) private view returns (bytes32) {
        bytes32 kind = keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        bytes32 name = keccak256("Tallystick");
        bytes32 domain = keccak256(abi.encode(kind, name, keccak256("1"), block.chainid, address(target)));
        return keccak256(abi.encodePacked(hex"1901", domain, message));
    }
}
