// Opens the page again for a tab that was let in before: it was loaded again, without its token.
"use strict";

const token = sessionStorage.getItem("token");
sessionStorage.removeItem("token");  // if it is wrong now, the next try would be as vain
if (token) location.replace(`/mcp?${new URLSearchParams({ token })}`);
