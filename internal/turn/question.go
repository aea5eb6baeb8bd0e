package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/state"
	"helmr.dev/helmr/internal/turn/content"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// QuestionStatus of a Question.
type QuestionStatus string

// The statuses of a Question; the last two are final.
const (
	QuestionPending   = QuestionStatus("pending")
	QuestionResponded = QuestionStatus("responded")
	QuestionCancelled = QuestionStatus("cancelled")
)

// QuestionStatuses are the allowed arrows of a Question. Pending to responded: the first valid response while the Turn runs, is not
// aborted and has not reached its deadline. Pending to cancelled: withdrawn by the process, or its Turn aborts or ends.
var QuestionStatuses = state.Table[QuestionStatus]{
	QuestionPending: {QuestionResponded, QuestionCancelled},
}

// question is a Question as stored, without its prompt.
type question struct {
	api.Question
	digest, answerDigest, responseID string
	by                               api.Actor
}

// move takes one arrow of the table.
func (q *question) move(to QuestionStatus) error {
	if err := QuestionStatuses.Check("question "+q.ID, QuestionStatus(q.Status), to); err != nil {
		return err
	}
	q.Status = string(to)
	return nil
}

// ask admits a Question of the running Turn. The same id with the same content is one Question.
func (x *exchange) ask(u *unit, o *operation) error {
	if u.s.ParentSessionID != nil {
		return fault.New(fault.RootSessionRequired, "only a root Session can ask Questions; this one has a parent")
	}
	if !id.Valid(o.QuestionID) {
		return fault.New(fault.InvalidArguments, "questionId must be a canonical UUIDv7")
	}
	q, err := content.CheckQuestion(o.Question)
	if err != nil {
		return err
	}
	digest, err := content.Digest(q.JSON)
	if err != nil {
		return err
	}
	t := u.head
	have, err := readQuestion(x.tx, t.SessionID, t.ID, o.QuestionID)
	switch {
	case err == nil && have.digest != digest:
		return fault.New(fault.IdempotencyConflict, "Question %s was asked before with other content", o.QuestionID)
	case err == nil:
		return nil
	case !fault.Is(err, fault.NotFound):
		return err
	case !u.processing():
		return fault.New(fault.QuestionCancelled, "the Turn takes no more Questions")
	}
	if err := u.spend(len(q.JSON)); err != nil {
		return err
	}
	t.Questions++
	err = x.tx.Do(sqlQuestionInsert, o.QuestionID, t.SessionID, t.ID, t.Questions, digest, string(q.Prompt), string(q.Control), x.now)
	if err != nil {
		return fmt.Errorf("insert question: %w", err)
	}
	_, err = x.event(u, t.ID, "question.created", map[string]any{"question_id": o.QuestionID, "question": q.JSON})
	return err
}

// spend counts n bytes of output or a Question into the total of the running Turn.
func (u *unit) spend(n int) error {
	t := u.head
	if t.OutputBytes+int64(n) > MaxOutputBytes {
		return fault.New(fault.ContentLimitExceeded, "the output and Questions of a Turn are at most %d bytes", MaxOutputBytes)
	}
	t.OutputBytes += int64(n)
	t.changed = true
	return nil
}

// withdraw cancels a Question whose ask was aborted. Whichever the server saw first counts: an answer that came before
// still reaches the process.
func (x *exchange) withdraw(u *unit, o *operation) error {
	q, err := readQuestion(x.tx, u.s.ID, u.head.ID, o.QuestionID)
	if err != nil {
		return err
	}
	switch QuestionStatus(q.Status) {
	case QuestionResponded:
		return fault.New(fault.QuestionAlreadyResponded, "Question %s was answered before it was withdrawn; the answer follows", q.ID)
	case QuestionCancelled:
		return nil
	}
	return x.cancelQuestion(u, q, true)
}

func (w *work) cancelQuestion(u *unit, q *question, byProcess bool) error {
	if err := q.move(QuestionCancelled); err != nil {
		return err
	}
	settled := 0
	if byProcess {
		settled = 1
	}
	if err := w.tx.Do(sqlQuestionCancel, w.now, settled, q.TurnID, q.ID); err != nil {
		return fmt.Errorf("cancel question: %w", err)
	}
	_, err := w.event(u, q.TurnID, "question.cancelled", map[string]string{"question_id": q.ID})
	return err
}

// cancelQuestions cancels every pending Question of the running Turn of u: it aborts or ends.
func (w *work) cancelQuestions(u *unit) error {
	if u.head.Questions == 0 {
		return nil
	}
	pending, err := w.tx.Column(sqlQuestionsPending, u.head.ID)
	if err != nil {
		return fmt.Errorf("read questions: %w", err)
	}
	for _, questionID := range pending {
		q := &question{Question: api.Question{ID: questionID, TurnID: u.head.ID, Status: string(QuestionPending)}}
		if err := w.cancelQuestion(u, q, false); err != nil {
			return err
		}
	}
	return nil
}

// pendingQuestions tells whether the running Turn of u has an unanswered Question.
func (w *work) pendingQuestions(u *unit) (bool, error) {
	if u.head.Questions == 0 {
		return false, nil
	}
	return w.tx.Get([]any{new(string)}, sqlQuestionsPending, u.head.ID)
}

// abort asks the handler of u to stop and cancels its Questions. It tells whether that is new.
func (w *work) abort(u *unit, reason string) (bool, error) {
	if !u.busy() || !u.head.abort(reason, w.now) {
		return false, nil
	}
	return true, w.cancelQuestions(u)
}

// wantAnswers tells the process what became of its Questions.
func (x *exchange) wantAnswers(u *unit, seen *workerpb.ObservedProcess) error {
	if u.head.Questions == 0 {
		return nil
	}
	err := x.tx.Query(func(sc func(...any) error) error {
		var questionID string
		var answer, kind, who *string
		if err := sc(&questionID, &answer, &kind, &who); err != nil {
			return err
		}
		line := map[string]any{"type": "question_cancelled", "turnId": u.head.ID, "questionId": questionID}
		if answer != nil {
			line["type"], line["answer"], line["respondedBy"] = "answer", rawJSON(*answer), api.Actor{Kind: *kind, ID: *who}
		}
		return x.tell(u, seen, fmt.Sprintf("%s:%s", line["type"], questionID), line)
	}, sqlQuestionsSettled, u.head.ID)
	if err != nil {
		return fmt.Errorf("read questions: %w", err)
	}
	return nil
}

// Respond answers a Question with the first valid response. Errors: not_found, question_already_responded,
// question_cancelled, idempotency_conflict, answer_invalid, bad_request (response_id).
func (s *Service) Respond(ctx context.Context, environmentID string, by api.Actor, sessionID, turnID, questionID string, req api.RespondRequest) (api.Question, error) {
	var out api.Question
	if err := content.CheckResponseID(req.ResponseID); err != nil {
		return out, err
	}
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		w, u, err := s.begin(tx, environmentID, sessionID)
		if err != nil {
			return err
		}
		q, err := readQuestion(tx, sessionID, turnID, questionID)
		if err != nil {
			return err
		}
		if err := w.respond(u, q, by, req); err != nil {
			return err
		}
		out = q.Question
		out.Prompt, out.AnswerControl = nil, nil
		return w.flush()
	})
	return out, err
}

func (w *work) respond(u *unit, q *question, by api.Actor, req api.RespondRequest) error {
	if q.Status == string(QuestionResponded) {
		return q.repeated(by, req)
	}
	t := u.head
	over := t == nil || t.ID != q.TurnID || !u.busy() || t.AbortReason != nil || (t.DeadlineAt != nil && *t.DeadlineAt <= w.now)
	if q.Status == string(QuestionCancelled) || over {
		return fault.New(fault.QuestionCancelled, "question %s is cancelled: its Turn has stopped waiting for the answer", q.ID)
	}
	answer, err := content.CheckAnswer(q.AnswerControl, req.Answer)
	if err != nil {
		return err
	}
	digest, err := content.Digest(answer)
	if err != nil {
		return err
	}
	if err := q.move(QuestionResponded); err != nil {
		return err
	}
	err = w.tx.Do(sqlQuestionRespond, string(answer), digest, req.ResponseID, by.Kind, by.ID, w.now, q.TurnID, q.ID)
	if err != nil {
		return fmt.Errorf("record response: %w", err)
	}
	q.Answer, q.RespondedAt = answer, api.AtOpt(&w.now)
	q.answeredBy(by)
	who := "responded_by_user_id"
	if by.Kind == "api_key" {
		who = "responded_by_api_key_id"
	}
	computer.SignalWorker(w.tx, w.c)
	_, err = w.event(u, q.TurnID, "question.responded", map[string]any{"question_id": q.ID, "answer": answer, who: by.ID})
	return err
}

// repeated judges a response to a Question that has one.
func (q *question) repeated(by api.Actor, req api.RespondRequest) error {
	if q.responseID != req.ResponseID {
		return fault.New(fault.QuestionAlreadyResponded, "question %s is answered already", q.ID)
	}
	digest := ""
	if json.Valid(req.Answer) {
		digest, _ = content.Digest(req.Answer) // what has no digest is no answer that was accepted
	}
	if q.by != by || q.answerDigest != digest {
		return fault.New(fault.IdempotencyConflict, "response_id was used for another response to question %s; use a new one for a new response", q.ID)
	}
	return nil
}

func (q *question) answeredBy(by api.Actor) {
	q.by = by
	if by.Kind == "api_key" {
		q.RespondedByAPIKeyID = by.ID
	} else {
		q.RespondedByUserID = by.ID
	}
}

// GetQuestion gives one Question of a Turn; not_found if it is not there.
func (s *Service) GetQuestion(ctx context.Context, environmentID, sessionID, turnID, questionID string) (api.Question, error) {
	var out api.Question
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		if _, err := session.ComputerOf(tx, environmentID, sessionID); err != nil {
			return err
		}
		q, err := readQuestion(tx, sessionID, turnID, questionID)
		if err == nil {
			out = q.Question
		}
		return err
	})
	return out, err
}

// ListQuestions gives the Questions of a Turn, oldest first. cursor is the next_cursor of the page before, "" for the
// start.
func (s *Service) ListQuestions(ctx context.Context, environmentID, sessionID, turnID, cursor string, limit int) (api.QuestionPage, error) {
	page := api.QuestionPage{}
	after := int64(0)
	if cursor != "" {
		var err error
		if after, err = strconv.ParseInt(cursor, 10, 64); err != nil || after < 0 {
			return page, fault.New(fault.InvalidCursor, "cursor must be the next_cursor of the page before")
		}
	}
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.QuestionPage{Questions: []api.Question{}}
		if _, err := session.ComputerOf(tx, environmentID, sessionID); err != nil {
			return err
		}
		if err := requireTurn(tx, sessionID, turnID); err != nil {
			return err
		}
		last := after
		return tx.Query(func(sc func(...any) error) error {
			var number int64
			q, err := scanQuestion(func(dest ...any) error { return sc(append(dest, &number)...) })
			if len(page.Questions) == limit {
				page.NextCursor = strconv.FormatInt(last, 10)
				return err
			}
			page.Questions, last = append(page.Questions, q.Question), number
			return err
		}, sqlQuestions, turnID, after, limit+1)
	})
	return page, err
}

func readQuestion(tx *db.Tx, sessionID, turnID, questionID string) (*question, error) {
	var q *question
	err := tx.Query(func(sc func(...any) error) (err error) {
		q, err = scanQuestion(sc)
		return err
	}, sqlQuestionGet, turnID, questionID, sessionID)
	if err != nil {
		return nil, fmt.Errorf("read question: %w", err)
	}
	if q == nil {
		return nil, fault.New(fault.NotFound, "question %s does not exist in turn %s of session %s", questionID, turnID, sessionID)
	}
	return q, nil
}

func scanQuestion(sc func(...any) error) (*question, error) {
	var (
		q                                         question
		prompt, control, answer, digest, response *string
		kind, who                                 *string
		created                                   int64
		responded, cancelled, expired             *int64
	)
	err := sc(&q.ID, &q.SessionID, &q.TurnID, &q.Status, &q.digest, &prompt, &control, &answer, &digest, &response, &kind, &who, &created, &responded, &cancelled, &expired)
	if err != nil {
		return nil, err
	}
	q.Prompt, q.AnswerControl, q.Answer = rawOpt(prompt), rawOpt(control), rawOpt(answer)
	q.CreatedAt, q.RespondedAt, q.CancelledAt, q.PayloadExpired = api.At(created), api.AtOpt(responded), api.AtOpt(cancelled), expired != nil
	if response != nil {
		q.answerDigest, q.responseID = *digest, *response
		q.answeredBy(api.Actor{Kind: *kind, ID: *who})
	}
	return &q, nil
}

func rawOpt(s *string) json.RawMessage {
	if s == nil {
		return nil
	}
	return json.RawMessage(*s)
}
