"""A virtual machine for tests: an image from Debian's packages, QEMU, its guest agent, and the suites that run inside."""
