// Lets the scripts here import the packages that `setup` installed in .peers/node:
//
//     .peers/node/node_modules/.bin/node --import ./tests/end_to_end/peers/packages.mjs SCRIPT
//
// (An ES module looks for packages only in the folders above it, and node_modules is not above us.)
import { registerHooks } from "node:module";

const installed = new URL("../../../.peers/node/", import.meta.url).href;
const here = new URL(".", import.meta.url).href;

registerHooks({
  resolve(specifier, context, next) {
    const ours = context.parentURL?.startsWith(here) && /^[@a-z]/.test(specifier);
    return next(specifier, ours ? { ...context, parentURL: installed } : context);
  },
});
