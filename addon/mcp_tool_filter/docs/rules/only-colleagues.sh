#!/bin/sh
# The message comes on standard input.
if grep -q '"to": *"[^"]*@example\.com"'; then
    exit 0
fi
echo "Mail may only go to colleagues"
exit 1
