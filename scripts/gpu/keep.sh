#!/usr/bin/env bash
# Keeps what this call has brought, for a later one. usage: keep.sh
set -eu
KEEP_ONLY=1 . scripts/gpu/setup.sh
