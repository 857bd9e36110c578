// SPDX-License-Identifier: Apache-2.0
//
// Carries the precompiled header of all tests; has no code of its own.
