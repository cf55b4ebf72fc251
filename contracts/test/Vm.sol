// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

/// The cheat codes of forge that the tests use; they live at a fixed address, so no library is needed.
interface Vm {
    function warp(uint256 time) external;
    function roll(uint256 number) external;
    function setBlockhash(uint256 number, bytes32 hash) external;
    function deal(address who, uint256 amount) external;
    function prank(address sender) external;
    function assume(bool condition) external pure;
    function expectRevert(bytes calldata reason) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function addr(uint256 key) external pure returns (address);
    function chainId(uint256 number) external;
}

abstract contract WithVm {
    Vm internal constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    function refusedWith(string memory code) internal {
        vm.expectRevert(abi.encodeWithSignature("Error(string)", code));
    }
}
