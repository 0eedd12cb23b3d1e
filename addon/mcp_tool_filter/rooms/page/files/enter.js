// Opens the page again for a tab that was let in before: it was loaded again, without its token.
"use strict";

const token = sessionStorage.getItem("token");
sessionStorage.removeItem("token");  // if it is wrong now, the next try would be as vain
if (token) {
  const again = new URL(location.href);  // with the filters, which are in the address
  again.searchParams.set("token", token);
  location.replace(again);
}
