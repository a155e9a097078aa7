#include "hooks/cut_responses.h"

#include <memory>
#include <utility>

namespace spac {

namespace {

constexpr auto incomplete = "incomplete";

class CutResponse : public server_task_result_cmpl_final {
  public:
    explicit CutResponse(server_task_result_cmpl_final && result) : server_task_result_cmpl_final(std::move(result)) {}

    json to_json() override {
        json told = server_task_result_cmpl_final::to_json();
        if (!stream) {
            mark(told);
            return told;
        }
        json & end           = told.back();
        end["event"]         = "response.incomplete";
        end["data"]["type"]  = "response.incomplete";
        const bool has_items = mark(end["data"]["response"]);
        if (has_items) { // the event before tells the last item
            told.at(told.size() - 2)["data"]["item"]["status"] = incomplete;
        }
        return told;
    }

  private:
    // Marks a response and its last item. Returns true if it has items.
    static bool mark(json & response) {
        response["status"]             = incomplete;
        response["incomplete_details"] = json{{"reason", "max_output_tokens"}};
        json &     output              = response["output"];
        const bool has_items           = !output.empty();
        if (has_items) {
            output.back()["status"] = incomplete;
        }
        return has_items;
    }
};

} // namespace

void tell_cut_response(server_task_result_ptr & result) {
    auto * const end = dynamic_cast<server_task_result_cmpl_final *>(result.get());
    if (end != nullptr && end->res_type == TASK_RESPONSE_TYPE_OAI_RESP && end->stop == STOP_TYPE_LIMIT) {
        result = std::make_unique<CutResponse>(std::move(*end));
    }
}

} // namespace spac
