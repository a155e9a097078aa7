// A second signal that ends the process, even if no other code of the process runs any more.
#pragma once

namespace spac {

// From now on, this signal's present handler gets the first signal. One that comes `after_s` seconds later or more, of
// this number or another one that was given here, ends the process by its default action. A signal within that time
// goes to the handler too, because programs such as timeout(1) send each signal twice. Setting another handler ends
// this. A call forgets the signals before it, or with `has_come`, begins as if one came now.
void end_at_second_signal(int number, double after_s, bool has_come);

} // namespace spac
